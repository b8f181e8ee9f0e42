"""Images per second of a ResNet-19 on a CPU: folded, as it is trained, in SpikingJelly, and as a ReLU network.

python -m benchmarks.inference                 batch 1 and 64, T = 4, two threads
python -m benchmarks.inference --rounds 3 --out results/inference-cpu.json
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.measure import ATTEMPTS, FOREIGN_LOAD, Load
from rheobase import models
from rheobase.deploy import fold
from rheobase.train.heap import keep_freed_memory
from rheobase.train.record import write_result

Forward = Callable[[Tensor], Tensor]


def contenders(network: str, timesteps: int) -> dict[str, Forward]:
    """Every network untrained, in evaluation mode, with running statistics of its own currents: its neurons fire."""
    torch.manual_seed(0)
    trained = _settled(models.build(network), timesteps)
    found: dict[str, Forward] = {
        "folded": partial(fold(trained), timesteps=timesteps),
        "as trained": partial(trained, timesteps=timesteps),
        "ReLU network": _relu(_foreign(network, peers.ReluSoma, 1)),
    }
    try:
        theirs = _foreign(network, partial(peers.SpikingJellySoma, surrogate="Rect"), timesteps)
    except peers.Unavailable as reason:
        Console(stderr=True).print(f"SpikingJelly left out: {reason}")
        return found

    def spikingjelly(x: Tensor) -> Tensor:
        peers.reset_spikingjelly(theirs)
        return theirs(x, timesteps=timesteps)

    return found | {"SpikingJelly": spikingjelly}


def _foreign(network: str, soma: models.SomaFactory, timesteps: int) -> nn.Module:
    return _settled(peers.with_torch_convolutions(models.build(network, soma=soma)), timesteps)


def _settled(net: nn.Module, timesteps: int) -> nn.Module:
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in net.modules():
        if hasattr(module, "momentum"):  # of somas and batch norms: statistics are those of one batch
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(torch.randn(4, 3, 32, 32), timesteps)
    return net.eval()


def _relu(net: nn.Module) -> Forward:
    return lambda x: net(x, 1)  # it needs no time: one pass per image


@torch.no_grad()
def measure(batch: int, networks: dict[str, Forward], rounds: int) -> dict[str, dict[str, Any]]:
    """Images per second of each, in rounds that alternate; those that other processes disturbed do not count."""
    x = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for forward in networks.values():
        forward(x)
    good: dict[str, list[float]] = {name: [] for name in networks}
    every: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(ATTEMPTS * rounds):
        for name, forward in networks.items():
            if len(good[name]) == rounds:
                continue
            load, start = Load(), time.perf_counter()
            forward(x)
            seconds = time.perf_counter() - start
            every[name].append(seconds)
            if load.foreign() <= FOREIGN_LOAD:
                good[name].append(seconds)
    return {
        name: {
            "images_per_second": batch / statistics.median(good[name] or every[name]),
            "undisturbed_rounds": len(good[name]),
            "seconds": every[name],
        }
        for name in networks
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="resnet19")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # for all of them
    networks = contenders(args.network, args.timesteps)
    results = {str(batch): measure(batch, networks, args.rounds) for batch in args.batch}
    table = Table(f"{args.network}, T = {args.timesteps}", *(f"batch {b}, images/s" for b in args.batch))
    for name in networks:
        table.add_row(name, *(f"{results[str(b)][name]['images_per_second']:.2f}" for b in args.batch))
    Console().print(table)
    if args.out:
        settings = {key: value for key, value in vars(args).items() if key != "out"}
        write_result(args.out, {"settings": settings, "results": results}, seed=0)


if __name__ == "__main__":
    main()
