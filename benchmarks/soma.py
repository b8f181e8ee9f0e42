"""Time the four steps of the fused soma on the shapes of ResNet-19, and compare their bandwidth with a plain copy.

    python -m benchmarks.soma

The bytes are the fewest that a step must move: every input is read once, every output written once.
"""

import argparse
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import Setting
from benchmarks.peers import LoopSoma
from rheobase import models
from rheobase.kernels import fused
from rheobase.train.capture import CapturedStep

DECAY, V_TH, WIDTH, EPS = 0.25, 0.5, 1.0, 1e-5


@dataclass(frozen=True)
class Shape:
    """What a soma receives: branches of [T, N, C, ...]. In the stem, they are the same at every timestep (static)."""

    sequence: tuple[int, ...]
    branches: int
    static: bool

    def __str__(self) -> str:
        return f"{self.branches} of {list(self.sequence)}{' static' if self.static else ''}"


def shapes(setting: Setting) -> Counter[Shape]:
    """Count the input shapes of a network's somas."""
    found: Counter[Shape] = Counter()

    def note(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found[Shape(tuple(output.shape), len(inputs), fused.is_static(inputs[0]))] += 1

    with torch.device("meta"):
        net = models.build(setting.network, in_channels=3, image_size=setting.image_size, soma=LoopSoma)
        images = torch.empty(setting.batch, 3, setting.image_size, setting.image_size)
    for module in net.modules():
        if isinstance(module, LoopSoma):
            module.register_forward_hook(note)
    net(images, timesteps=setting.timesteps)
    return found


def received(shape: Shape, setting: Setting) -> tuple[list[Tensor], Tensor]:
    """Return random branches of a soma, and a random gradient of its spikes."""
    timesteps, batch = shape.sequence[:2]
    dtype = torch.bfloat16 if setting.half else torch.float32

    def sequence(length: int) -> Tensor:
        flat = torch.randn(length * batch, *shape.sequence[2:], device=setting.device).to(dtype)
        if flat.ndim == 4:
            flat = flat.contiguous(memory_format=setting.memory_format)
        return flat.unflatten(0, (length, batch))

    xs = [sequence(1 if shape.static else timesteps).expand(shape.sequence) for _ in range(shape.branches)]
    return xs, sequence(timesteps)


def steps(shape: Shape, setting: Setting, backend: str) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Return the four steps on random data: name -> (bytes, call)."""
    xs, grad = received(shape, setting)
    channels = shape.sequence[2]
    weight = torch.ones(shape.branches, channels, device=setting.device)
    count = grad.numel() / channels
    constants = fused.Constants(DECAY, V_TH, WIDTH, EPS)
    mean, var = fused.statistics(xs, backend)[:-1].chunk(2)
    neurons = fused.Neurons(weight, torch.zeros_like(weight), mean, var, None, constants)
    neuron = neurons.arguments
    sums, du = fused.backward_sums(grad, xs, *neuron, backend == "cpu", backend)

    whole = grad.numel() * grad.element_size()
    inputs = sum(fused.one_step_if_static(x).numel() * x.element_size() for x in xs)
    return {
        "statistics": (inputs, lambda: fused.statistics(xs, backend)),
        "forward": (inputs + whole, lambda: fused.forward(xs, *neuron, False, backend)),
        "backward_sums": (
            inputs + whole,
            lambda: fused.backward_sums(grad, xs, *neuron, backend == "cpu", backend),
        ),
        "backward_inputs": (
            2 * inputs + whole,
            lambda: fused.backward_inputs(grad, xs, *neuron, du, sums, count, backend),
        ),
    }


def seconds(call: Callable[[], Any], device: str) -> float:
    """Return the median time of several calls. On a GPU, caches are cold, and a CUDA graph avoids launch costs."""
    if device == "cuda":
        from triton.testing import do_bench

        def step() -> tuple[()]:
            call()
            return ()

        captured = CapturedStep(step)
        for _ in range(4):
            captured()
        return do_bench(captured, warmup=20, rep=60, return_mode="median") / 1e3
    call()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def copy_rate(device: str) -> float:
    """Return the bytes per second of a plain copy, counting bytes read and bytes written."""
    source = torch.randn(2**28 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / seconds(lambda: target.copy_(source), device)


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Time and bandwidth of the fused soma's steps.")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256 if gpu else 8)
    options = parser.parse_args()
    setting = Setting(options.timesteps, options.batch, "cuda" if gpu else "cpu", half=gpu)
    backend = "triton" if gpu else "cpu"

    copy = copy_rate(setting.device)
    table = Table(title=f"Fused soma ({backend}); a plain copy moves {copy / 1e9:,.0f} GB/s", title_justify="left")
    for heading in ("step", "shape", "times", "us", "MB", "GB/s", "of a copy", "us / image / step"):
        table.add_column(heading, justify="left" if heading in ("step", "shape") else "right")
    totals: defaultdict[str, float] = defaultdict(float)
    for shape, times in shapes(setting).items():
        for name, (size, call) in steps(shape, setting, backend).items():
            taken = seconds(call, setting.device)
            share = times * taken / (setting.timesteps * setting.batch) * 1e6
            totals[name] += share
            rate = size / taken
            table.add_row(
                name, str(shape), str(times), f"{taken * 1e6:.1f}", f"{size / 1e6:.1f}",
                f"{rate / 1e9:,.1f}", f"{rate / copy:.0%}", f"{share:.2f}",
            )  # fmt: skip
    table.add_section()
    for name, share in totals.items():
        table.add_row(name, "whole network", "", "", "", "", "", f"{share:.2f}")
    table.add_row("all", "whole network", "", "", "", "", "", f"{sum(totals.values()):.2f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
