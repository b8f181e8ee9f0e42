"""Measure inference of a ResNet-19: folded, as trained, in SpikingJelly, and as a ReLU network.

python -m benchmarks.inference                 batches of 1 and 64 on a CPU, two threads; 1, 32 and 512 on a GPU; T = 4
python -m benchmarks.inference --rounds 3 --out results/inference-cpu.json

On a GPU, everything runs in bfloat16 with bfloat16 weights, eagerly and as a CUDA graph.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.contenders import TRIANGLE, USUAL, USUALLY
from benchmarks.measure import ATTEMPTS, FOREIGN_LOAD, Load
from rheobase import models
from rheobase.deploy import fold
from rheobase.train.capture import CapturedStep
from rheobase.train.heap import keep_freed_memory
from rheobase.train.record import write_result
from rheobase.train.switches import cudnn

Forward = Callable[[Tensor], Tensor]
LEAST = 0.1  # seconds per round on a GPU
CAPTURED = ", CUDA graph"


def contenders(
    network: str, timesteps: int, device: torch.device, size: int = USUALLY.image_size
) -> dict[str, Forward]:
    """Return every network, untrained and in evaluation mode. Its running statistics fit its currents, so it fires."""
    torch.manual_seed(0)
    half = device.type == "cuda"
    options: dict[str, Any] = {"in_channels": 3, "image_size": size}
    images = torch.randn(4, 3, size, size, device=device)

    def foreign(soma: models.SomaFactory) -> nn.Module:
        return peers.with_torch_convolutions(models.build(network, soma=soma, **options))

    trained = _settled(models.build(network, **options), images, timesteps)
    folded, relu = fold(trained), _settled(foreign(peers.ReluSoma), images, 1)
    found: dict[str, Forward] = {
        "folded": partial(_ready(folded, device), timesteps=timesteps),
        "as trained": partial(_ready(trained, device), timesteps=timesteps),
        "ReLU network": partial(_ready(relu, device), timesteps=1),  # without timesteps: one pass per image
    }
    if half:
        found["ReLU network, T x N images"] = lambda x: relu(_many(x, timesteps), timesteps=1)
    try:
        theirs = foreign(partial(peers.SpikingJellySoma, surrogate=TRIANGLE if half else "Rect"))
        if half:
            peers.store_spikingjelly_in_bfloat16(theirs.to(device))
        _ready(_settled(theirs, images, timesteps), device)

        def spikingjelly(x: Tensor) -> Tensor:
            peers.reset_spikingjelly(theirs)
            return theirs(x, timesteps=timesteps)

        with torch.no_grad():
            (_in_bfloat16(spikingjelly) if half else spikingjelly)(images)
        found["SpikingJelly"] = spikingjelly
    except Exception as reason:  # whatever a peer raises, the others continue
        Console(stderr=True).print(f"SpikingJelly left out: {reason}", markup=False)
    return {name: _in_bfloat16(forward) for name, forward in found.items()} if half else found


def _in_bfloat16(forward: Forward) -> Forward:
    def run(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return forward(x)

    return run


def _many(images: Tensor, timesteps: int) -> Tensor:
    return images.repeat(timesteps, 1, 1, 1).contiguous(memory_format=torch.channels_last)


def _settled(net: nn.Module, images: Tensor, timesteps: int) -> nn.Module:
    net.to(device=images.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in net.modules():
        if hasattr(module, "momentum"):  # somas and batch norms: take the statistics of one batch
            module.momentum = 1.0
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        net.train()(images, timesteps)
    return net.eval()


def _ready(net: nn.Module, device: torch.device) -> nn.Module:
    """Convert the weights of any contender to bfloat16 on a GPU, so that autocast does not cast them at every call."""
    if device.type == "cuda":
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight = nn.Parameter(module.weight.detach().bfloat16(), requires_grad=False)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


@torch.no_grad()
def measure(
    batch: int, networks: dict[str, Forward], rounds: int, size: int = USUALLY.image_size
) -> dict[str, dict[str, Any]]:
    """Measure images per second of each network in interleaved rounds. Rounds with other load do not count."""
    x = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
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


@torch.no_grad()
def measure_on_gpu(batch: int, networks: dict[str, Forward], rounds: int, size: int) -> dict[str, dict[str, Any]]:
    """Measure each network on a GPU, eagerly and, if it can be captured, as a CUDA graph."""
    x = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
    runs: dict[str, Callable[[], object]] = {}
    with cudnn(benchmark=True):
        for name, forward in networks.items():
            runs[name] = eager = partial(forward, x)
            graph = _graph(eager)
            if graph is not None:
                runs[name + CAPTURED] = graph.replay
        repeats = {name: max(1, round(LEAST / _seconds(run, 3))) for name, run in runs.items()}
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                found[name].append(_seconds(run, repeats[name]))
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    return {
        name: {"images_per_second": batch / middle[name], "milliseconds": 1e3 * middle[name], "seconds": seconds}
        for name, seconds in found.items()
    }


def _graph(run: Callable[[], Tensor]) -> torch.cuda.CUDAGraph | None:
    step = CapturedStep(lambda: (run(),), eager_calls=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            step()
    for warning in said:
        Console(stderr=True).print(str(warning.message), markup=False)
    return step.graph


def _seconds(run: Callable[[], object], repeats: int) -> float:
    run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def table(network: str, timesteps: int, results: dict[str, dict[str, dict[str, Any]]]) -> Table:
    """Return a row for each network and a column for each batch."""
    unit = "ms" if any("milliseconds" in found for of in results.values() for found in of.values()) else "images/s"
    shown = Table(f"{network}, T = {timesteps}", *(f"batch {batch}, {unit}" for batch in results))
    key = "milliseconds" if unit == "ms" else "images_per_second"
    for name in dict.fromkeys(name for of in results.values() for name in of):
        shown.add_row(name, *(f"{of[name][key]:.2f}" if name in of else "-" for of in results.values()))
    return shown


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="resnet19")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, nargs="+", help="by default 1 and 64 on a CPU, 1, 32 and 512 on a GPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpu else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device, size = torch.device(args.device), USUAL.get(args.network, USUALLY).image_size
    if device.type == "cuda" and not gpu:
        sys.exit("device 'cuda' is not available here; use --device cpu")
    args.batch = args.batch or ([1, 32, 512] if device.type == "cuda" else [1, 64])
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # for all contenders
    networks = contenders(args.network, args.timesteps, device, size)
    timed = measure_on_gpu if device.type == "cuda" else measure
    results = {str(batch): timed(batch, networks, args.rounds, size) for batch in args.batch}
    Console().print(table(args.network, args.timesteps, results))
    if args.out:
        settings = {key: value for key, value in vars(args).items() if key != "out"} | {"image_size": size}
        write_result(args.out, {"settings": settings, "results": results}, device=device, seed=0)


if __name__ == "__main__":
    main()
