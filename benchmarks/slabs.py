"""Would somas be faster over a few channels at a time?

    python -m benchmarks.slabs

In either direction, a soma reads its inputs twice: for the statistics and for the spikes, or for the sums and for the
gradients. Large inputs leave the cache in between. A slab of their channels might stay, so that only the first pass
reads memory. For the largest inputs of a network, this compares both passes over everything, as they are now, with
slabs of several widths, one after the other, or with the second pass of a slab beside the first pass of the next. The
kernels are those in use, on views of the tensors.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.contenders import Setting
from benchmarks.output import result_path
from benchmarks.pointwise import Way, compared
from benchmarks.soma import Shape, Work, work
from benchmarks.tiles import NETWORKS, largest_shapes
from rheobase.files import finite_or_null
from rheobase.kernels import triton as kernels
from rheobase.kernels.fused import Neurons
from rheobase.kernels.launching import compiled_ahead
from rheobase.train.record import write_result

WIDTHS = (16, 32, 64, 128, 256)  # channels
TIMESTEPS = 4  # one segment: the kernels store nothing in between


@dataclass(frozen=True)
class SlabLayout(kernels._Layout):
    """Some channels of a tensor in channels last: its rows are as far apart as those of the whole tensor."""

    outputs: ClassVar[list[Tensor]] = []

    @classmethod
    def of(cls, x: Tensor) -> "SlabLayout":
        return cls(True, x.shape[1] * prod(x.shape[3:]), x.shape[2], x.stride(-1), 1, 1)

    def fit(self, x: Tensor) -> Tensor:
        return x

    def empty(self, x: Tensor) -> Tensor:
        return self.outputs.pop(0)


@contextmanager
def on_slabs(*outputs: Tensor) -> Iterator[None]:
    """Let the kernels read views of some channels, and write into these."""
    usual = kernels._Layout
    kernels._Layout, SlabLayout.outputs = SlabLayout, list(outputs)  # type: ignore[misc]
    try:
        yield
    finally:
        kernels._Layout = usual  # type: ignore[misc]


Passes = tuple[Callable[[], Any], Callable[[Any], None]]
"""The two passes over a slab. The second receives what the first returned."""


def forward(given: Work, device: str) -> Iterator[Way]:
    """Yield the ways to get the spikes, today's first."""
    xs, _, neurons = given

    def today() -> Tensor:
        mean, var = kernels.statistics(xs)[:-1].chunk(2)
        return kernels.forward(xs, neurons._replace(mean=mean, var=var), False)[0]

    yield "whole", today
    spikes = torch.empty_like(xs[0])

    def passes(slab: slice) -> Passes:
        own, of_slab = [x[:, :, slab] for x in xs], _neurons(neurons, slab)

        def statistics() -> tuple[Tensor, ...]:
            with on_slabs():
                return kernels.statistics(own)[:-1].chunk(2)

        def fire(moments: tuple[Tensor, ...]) -> None:
            with on_slabs(spikes[:, :, slab]):
                kernels.forward(own, of_slab._replace(mean=moments[0], var=moments[1]), False)

        return statistics, fire

    yield from _ways(passes, spikes.shape[2], spikes, device)


def backward(given: Work, device: str) -> Iterator[Way]:
    """Yield the ways to get the gradients of all branches, today's first."""
    xs, grad, neurons = given

    def today() -> list[Tensor]:
        sums, du = kernels.backward_sums(grad, xs, neurons)
        return kernels.backward_inputs(grad, xs, neurons, du, sums, given.count, ())

    yield "whole", today
    gradients = [torch.empty_like(x) for x in xs]

    def passes(slab: slice) -> Passes:
        own, own_grad, of_slab = [x[:, :, slab] for x in xs], grad[:, :, slab], _neurons(neurons, slab)

        def sums() -> tuple[Tensor, Tensor]:
            with on_slabs():
                return kernels.backward_sums(own_grad, own, of_slab)

        def inputs(found: tuple[Tensor, Tensor]) -> None:
            with on_slabs(*(x[:, :, slab] for x in gradients)):
                kernels.backward_inputs(own_grad, own, of_slab, found[1], found[0], given.count, ())

        return sums, inputs

    yield from _ways(passes, grad.shape[2], gradients, device)


def _neurons(neurons: Neurons, slab: slice) -> Neurons:
    return Neurons(*(p[:, slab].contiguous() for p in neurons[:4]), None, neurons.constants)


def _ways(passes: Callable[[slice], Passes], channels: int, result: Any, device: str) -> Iterator[Way]:
    for width in (width for width in WIDTHS if width < channels):
        work = [passes(slab) for slab in slabs(channels, width)]
        yield f"slabs of {width}", lambda work=work: in_turn(work, result)
        if device == "cuda":
            yield f"slabs of {width}, overlapping", lambda work=work: overlapping(work, result)


def slabs(channels: int, width: int) -> list[slice]:
    """Divide the channels; the last slab may be narrower."""
    return [slice(first, min(first + width, channels)) for first in range(0, channels, width)]


def in_turn(work: list[Passes], result: Any) -> Any:
    """Run both passes over a slab before the next."""
    for first, second in work:
        second(first())
    return result


def overlapping(work: list[Passes], result: Any) -> Any:
    """Run the second pass over a slab beside the first pass over the next."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    if side == main:  # torch gives out the same few streams in turn, also the one that captures
        side = torch.cuda.Stream()
    found = []  # kept until both streams are done: the memory belongs to the first
    for first, second in work:
        found.append(first())
        side.wait_stream(main)
        with torch.cuda.stream(side):
            second(found[-1])
    main.wait_stream(side)
    return result


def timed(shape: Shape, setting: Setting) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield both directions, each with the times of all ways."""
    given = work(shape, setting, "triton")
    for name, ways in (("forward", forward), ("backward", backward)):
        with compiled_ahead():
            for _, call in ways(given, "cpu"):  # without streams: nothing runs
                call()
        yield name, list(compared(ways(given, setting.device), setting.device))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the passes of somas over slabs of channels.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["resnet50", "resnet34"])
    parser.add_argument("--out", type=Path, help="JSON file; by default results/slabs-<device>.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("slabs need a GPU")
    results, device = [], torch.device("cuda")
    saved: dict[str, Counter[str]] = {network: Counter() for network in options.networks}
    out = options.out or result_path("slabs", device)
    for done, network in enumerate(options.networks, 1):
        batch, size = NETWORKS[network]
        setting = Setting(TIMESTEPS, batch, "cuda", network, size, half=True)
        for shape, times in largest_shapes(setting).items():
            for name, rows in timed(shape, setting):
                best = min((row for row in rows if "seconds" in row), key=lambda row: row["seconds"])
                saved[network][name] += 1e6 * times * (rows[0]["seconds"] - best["seconds"]) / (TIMESTEPS * batch)
                results.append({"network": network, "pass": name, "shape": str(shape), "times": times, "ways": rows})
                print(f"{network} {name} {shape} x {times}: {1e6 * rows[0]['seconds']:.1f} us, {best['way']} "
                      f"{1e6 * best['seconds']:.1f} us, difference {best['difference']:.1e}", flush=True)  # fmt: skip
        content = {"timesteps": TIMESTEPS, "saved_us_per_image_timestep": {k: dict(v) for k, v in saved.items()}}
        content |= {"results": finite_or_null(results)}
        write_result(out, content, to_come=len(options.networks) - done, device=device)
    print(f"saved per image and timestep, us: {content['saved_us_per_image_timestep']}")


if __name__ == "__main__":
    main()
