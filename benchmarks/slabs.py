"""Would the two passes of a soma be faster over a few channels at a time?

    python -m benchmarks.slabs

In either direction, a soma reads its inputs twice: for the statistics and for the spikes, or for the sums and for the
gradients. Large inputs leave the cache in between. The inputs of a slab of channels might stay, so that only the first
pass reads memory. For the largest inputs of a network, this compares both passes over everything, as they are now, with
slabs of several widths, one after the other, or with the second pass of a slab beside the first pass of the next.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.contenders import Setting
from benchmarks.output import result_path
from benchmarks.pointwise import Way, compared
from benchmarks.soma import Shape, Work, work
from benchmarks.tiles import NETWORKS, largest_shapes
from rheobase.files import finite_or_null
from rheobase.kernels import triton as whole
from rheobase.kernels import triton_kernels as kernels
from rheobase.kernels.fused import Neurons
from rheobase.kernels.launching import compiled_ahead, on_grid
from rheobase.train.record import write_result

WIDTHS = (16, 32, 64, 128, 256)  # channels
TIMESTEPS = 4  # one segment


class Layout(whole._Layout):
    """How a slab lies in a sequence whose memory is channels last."""

    @classmethod
    def of_slab(cls, x: Tensor) -> "Layout":
        _, n, channels, *space = x.shape
        return cls(True, n * torch.Size(space).numel(), channels, x.stride(-1), 1, 1)

    def fit(self, x: Tensor) -> Tensor:
        return x


Passes = tuple[Callable[[], Any], Callable[[Any], None]]
"""The two passes over a slab. The second receives what the first returned."""


def forward_passes(xs: list[Tensor], spikes: Tensor, neurons: Neurons) -> Passes:
    layout, steps, n = Layout.of_slab(spikes), len(spikes), len(xs)

    def statistics() -> Tensor:
        tile, grid = layout.tile("statistics"), layout.grid("statistics")
        found = neurons.weight.new_empty(2 * n + 1, layout.channels)
        accumulator = whole._accumulator(found.dtype)
        for branch, x in enumerate(xs):
            partial = found.new_empty(grid[0], 2, layout.channels)
            shifts = found.new_empty(layout.channels)
            on_grid(kernels.statistics_kernel, grid)(
                x, partial, shifts, layout.rows, layout.channels, x.stride(0), layout.stride_n, 1,
                T=steps, SEGMENT=whole._segment(steps), PIXELS=1, PER_BYTE=0, ACC=accumulator, **tile,
            )  # fmt: skip
            on_grid(kernels.join_statistics_kernel, (triton.cdiv(layout.channels, 4),))(
                partial, shifts, found[branch], found[n + branch], found[2 * n],
                layout.rows, layout.channels, steps, 1, grid[0], ACC=accumulator,
                ROWS=tile["ROWS"], PROGRAMS=triton.next_power_of_2(grid[0]), CHANNELS=4, num_warps=8,
            )  # fmt: skip
        return found

    def fire(found: Tensor) -> None:
        on_grid(kernels.forward_kernel, layout.grid("forward"))(
            xs[0], xs[-1], spikes, None, neurons.weight, neurons.bias, found[:n], found[n : 2 * n], None,
            layout.rows, layout.channels, xs[0].stride(0), xs[-1].stride(0), spikes.stride(0), layout.stride_n, 1,
            PIXELS=1, PACKED=False, SHARING=1, **whole._constants(xs[0], neurons), **layout.tile("forward"),
        )  # fmt: skip

    return statistics, fire


def backward_passes(xs: list[Tensor], grad: Tensor, outs: list[Tensor], neurons: Neurons, count: int) -> Passes:
    layout, rows = Layout.of_slab(grad), 1 + len(xs)

    def sums() -> Tensor:
        grid = layout.grid("backward_sums")
        partial = neurons.weight.new_empty(grid[0], rows, layout.channels)
        whole._backward(layout, "backward_sums", grad, xs, [partial], neurons)
        found = torch.empty_like(partial[0])
        on_grid(kernels.join_sums_kernel, (triton.cdiv(layout.channels, 4), rows))(
            partial, found, neurons.var, layout.channels, grid[0], BRANCHES=len(xs), LEARNT=False,
            K=neurons.constants.v_th * len(xs) ** -0.5, EPS=neurons.constants.eps,
            PROGRAMS=triton.next_power_of_2(grid[0]), CHANNELS=4, num_warps=8,
        )  # fmt: skip
        return found

    def inputs(found: Tensor) -> None:
        whole._backward(layout, "backward_inputs", grad, xs, outs, neurons, found, count)

    return sums, inputs


def slabs(channels: int, width: int) -> list[slice]:
    return [slice(first, min(first + width, channels)) for first in range(0, channels, width)]


def _of(slab: slice, neurons: Neurons) -> Neurons:
    return Neurons(*(p[:, slab].contiguous() for p in neurons[:4]), None, neurons.constants)


def forward(given: Work, device: str) -> Iterator[Way]:
    """Yield the ways to get the spikes, today's first."""
    xs, _, neurons = given

    def today() -> Tensor:
        mean, var = whole.statistics(xs)[:-1].chunk(2)
        return whole.forward(xs, neurons._replace(mean=mean, var=var), False)[0]

    yield "whole", today
    spikes = torch.empty_like(xs[0])

    def passes(slab: slice) -> Passes:
        return forward_passes([x[:, :, slab] for x in xs], spikes[:, :, slab], _of(slab, neurons))

    yield from _ways(passes, spikes.shape[2], spikes, device)


def backward(given: Work, device: str) -> Iterator[Way]:
    """Yield the ways to get the gradients of all branches, today's first."""
    xs, grad, neurons = given
    count = round(given.count)

    def today() -> list[Tensor]:
        sums, du = whole.backward_sums(grad, xs, neurons)
        return whole.backward_inputs(grad, xs, neurons, du, sums, count, ())

    yield "whole", today
    outs = [torch.empty_like(x) for x in xs]

    def passes(slab: slice) -> Passes:
        parts, into = ([x[:, :, slab] for x in of] for of in (xs, outs))
        return backward_passes(parts, grad[:, :, slab], into, _of(slab, neurons), count)

    yield from _ways(passes, grad.shape[2], outs, device)


def _ways(passes: Callable[[slice], Passes], channels: int, result: Any, device: str) -> Iterator[Way]:
    for width in (width for width in WIDTHS if width < channels):
        work = [passes(slab) for slab in slabs(channels, width)]
        yield f"slabs of {width}", lambda work=work: in_turn(work, result)
        if device == "cuda":
            yield f"slabs of {width}, overlapping", lambda work=work: overlapping(work, result)


def in_turn(work: list[Passes], result: Any) -> Any:
    for first, second in work:
        second(first())
    return result


def overlapping(work: list[Passes], result: Any) -> Any:
    """Run the second pass over a slab beside the first pass over the next."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    found = []  # kept until both streams are done: the memory belongs to the first
    for first, second in work:
        found.append(first())
        side.wait_stream(main)
        with torch.cuda.stream(side):
            second(found[-1])
    main.wait_stream(side)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the passes of somas over slabs of channels.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["resnet50", "resnet34"])
    parser.add_argument("--out", type=Path, help="JSON file; by default results/slabs-<device>.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    results: list[dict[str, Any]] = []
    saved: dict[str, Counter[str]] = {network: Counter() for network in options.networks}
    device = torch.device("cuda")
    out = options.out or result_path("slabs", device)
    for done, network in enumerate(options.networks, 1):
        batch, size = NETWORKS[network]
        setting = Setting(TIMESTEPS, batch, "cuda", network, size, half=True)
        for shape, times in largest_shapes(setting).items():
            for name, rows in timed(shape, setting):
                best = min((row for row in rows if "seconds" in row), key=lambda row: row["seconds"])
                gain = 1e6 * times * (rows[0]["seconds"] - best["seconds"]) / (TIMESTEPS * batch)
                saved[network][name] += gain
                results.append(
                    {"network": network, "pass": name, "shape": shape._asdict(), "times": times, "ways": rows}
                )
                print(f"{network} {name} {shape} x {times}: {1e6 * rows[0]['seconds']:.1f} us, {best['way']} "
                      f"{1e6 * best['seconds']:.1f} us, difference {best['difference']:.1e}", flush=True)  # fmt: skip
        content = {"timesteps": TIMESTEPS, "saved_us_per_image_timestep": {k: dict(v) for k, v in saved.items()}}
        content |= {"results": finite_or_null(results)}
        write_result(out, content, to_come=len(options.networks) - done, device=device)
    print(f"saved per image and timestep, us: {saved}")


def timed(shape: Shape, setting: Setting) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    given = work(shape, setting, "triton")
    for name, ways in (("forward", forward), ("backward", backward)):
        with compiled_ahead():
            for _, call in ways(given, "cpu"):  # no streams, as nothing runs
                call()
        yield name, list(compared(ways(given, setting.device), setting.device))


if __name__ == "__main__":
    main()
