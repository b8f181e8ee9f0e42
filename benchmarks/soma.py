"""Time the four steps of the fused soma on the shapes of a network, and compare their bandwidth with a plain copy.

    python -m benchmarks.soma
    python -m benchmarks.soma --network resnet50 --out results/soma-nvidia-h200-resnet50.json

The bytes are the fewest that a step must move: every input is read once, every output written once.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import USUAL, USUALLY, Setting
from benchmarks.peers import LoopSoma
from rheobase import models
from rheobase.kernels import fused
from rheobase.train.capture import CapturedStep
from rheobase.train.record import write_result

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


class Work(NamedTuple):
    """What the four steps of a soma need: its branches, the gradient of its spikes, and its neurons."""

    xs: list[Tensor]
    grad: Tensor
    neurons: fused.Neurons

    @property
    def count(self) -> float:
        """The number of values per channel."""
        return self.grad.numel() / self.grad.shape[2]


def work(shape: Shape, setting: Setting, backend: str) -> Work:
    """Return random inputs of this shape, and neurons with their moments."""
    timesteps, batch, channels = shape.sequence[:3]
    dtype = torch.bfloat16 if setting.half else torch.float32

    def sequence(length: int) -> Tensor:
        flat = torch.randn(length * batch, *shape.sequence[2:], device=setting.device).to(dtype)
        if flat.ndim == 4:
            flat = flat.contiguous(memory_format=setting.memory_format)
        return flat.unflatten(0, (length, batch))

    xs = [sequence(1 if shape.static else timesteps).expand(shape.sequence) for _ in range(shape.branches)]
    weight = torch.ones(shape.branches, channels, device=setting.device)
    constants = fused.Constants(DECAY, V_TH, WIDTH, EPS)
    mean, var = fused.statistics(xs, backend)[:-1].chunk(2)
    return Work(xs, sequence(timesteps), fused.Neurons(weight, torch.zeros_like(weight), mean, var, None, constants))


def steps(shape: Shape, setting: Setting, backend: str) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Return the four steps on random data: name -> (bytes, call)."""
    xs, grad, neurons = given = work(shape, setting, backend)
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
            lambda: fused.backward_inputs(grad, xs, *neuron, du, sums, given.count, backend),
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
        if captured.graph is None:
            raise RuntimeError("this cannot be captured as a CUDA graph, and times without one are not comparable")
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


def measured(setting: Setting, backend: str) -> dict[str, Any]:
    """Return seconds and bytes of every step on every shape, and the bytes per second of a plain copy."""
    rows = [
        {"step": name, "shape": str(shape), "somas": somas, "bytes": size, "seconds": seconds(call, setting.device)}
        for shape, somas in shapes(setting).items()
        for name, (size, call) in steps(shape, setting, backend).items()
    ]
    return {"copy_bytes_per_second": copy_rate(setting.device), "rows": rows, "steps": totals(rows, setting)}


def totals(rows: list[dict[str, Any]], setting: Setting) -> dict[str, dict[str, float]]:
    """Return the bytes per second of every step over all somas, and its time per image and timestep."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["step"] for row in rows):
        own = [row for row in rows if row["step"] == name]
        time, size = (sum(row["somas"] * row[key] for row in own) for key in ("seconds", "bytes"))
        share = 1e6 * time / (setting.timesteps * setting.batch)
        found[name] = {"bytes_per_second": size / time, "us_per_image_timestep": share}
    return found


def table(found: dict[str, Any], title: str) -> Table:
    """Return a row for every step on every shape, and for every step of the whole network."""
    copy = found["copy_bytes_per_second"]
    shown = Table(title=f"{title}; a plain copy moves {copy / 1e9:,.0f} GB/s", title_justify="left")
    for heading in ("step", "shape", "somas", "us", "MB", "GB/s", "of a copy", "us / image / step"):
        shown.add_column(heading, justify="left" if heading in ("step", "shape") else "right")
    for row in found["rows"]:
        rate = row["bytes"] / row["seconds"]
        times = (f"{1e6 * row['seconds']:.1f}", f"{row['bytes'] / 1e6:.1f}", f"{rate / 1e9:,.1f}", f"{rate / copy:.0%}")
        shown.add_row(row["step"], row["shape"], str(row["somas"]), *times, "")
    shown.add_section()
    for name, own in found["steps"].items():
        rate, share = own["bytes_per_second"], own["us_per_image_timestep"]
        shown.add_row(name, "whole network", "", "", "", f"{rate / 1e9:,.1f}", f"{rate / copy:.0%}", f"{share:.2f}")
    everything = sum(own["us_per_image_timestep"] for own in found["steps"].values())
    shown.add_row("all", "whole network", "", "", "", "", "", f"{everything:.2f}")
    return shown


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Time and bandwidth of the fused soma's steps.")
    parser.add_argument("--network", default="resnet19")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, help="by default 256 (resnet34: 48, resnet50: 32), and 8 on a CPU")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    usual = USUAL.get(options.network, USUALLY)
    batch = options.batch or (usual.batch if gpu else 8)
    device = torch.device("cuda" if gpu else "cpu")
    setting = Setting(options.timesteps, batch, device.type, options.network, usual.image_size, half=gpu)
    backend = "triton" if gpu else "cpu"
    found = measured(setting, backend)
    title = f"Fused soma of {setting.network} ({backend})"
    Console(width=None if sys.stdout.isatty() else 140).print(table(found, title))
    if options.out:
        write_result(options.out, {"setting": asdict(setting), **found}, device=device)


if __name__ == "__main__":
    main()
