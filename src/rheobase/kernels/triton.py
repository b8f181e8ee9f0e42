"""The four steps of the fused soma and bare neurons on a GPU: layouts, tiles and launches of the Triton kernels."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from math import isinf, prod
from typing import Any, NamedTuple, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels import triton_kernels as kernels
from rheobase.kernels import triton_statistics
from rheobase.kernels.bare import BareNeurons
from rheobase.kernels.fused import Neurons, are_bits, is_static, one_step_if_static, sums_rows
from rheobase.kernels.launching import on_grid
from rheobase.kernels.packing import neurons_per_byte

LONGEST_SEGMENT = 8
PROGRAMS = 2112  # of a reduction, when there is that much to do: 16 on each processor of an H100 or H200


class Tile(NamedTuple):
    """How much a program takes at a time, and how many programs there are."""

    elements: int
    warps: int
    programs: int | None = None
    """At most about so many, each of which takes several tiles. None: one tile each, as `forward` needs it."""


TILES = {
    "statistics": Tile(256, 1, PROGRAMS),
    "forward": Tile(512, 4),
    "backward_sums": Tile(256, 2, PROGRAMS),
    "backward_inputs": Tile(256, 2),
}
WIDEST_TILE = 128  # channels

Launcher = TypeVar("Launcher", bound=Callable[..., Any])


def on_device_of_first(launch: Launcher) -> Launcher:
    """Triton launches on the current GPU, which need not be that of the tensors."""

    @wraps(launch)
    def launch_there(first: Tensor | list[Tensor], *arguments: Any, **options: Any) -> Any:
        with torch.cuda.device_of(first if isinstance(first, Tensor) else first[0]):
            return launch(first, *arguments, **options)

    return launch_there  # type: ignore[return-value]


@dataclass(frozen=True)
class _Layout:
    """How one step of a sequence lies in memory, and the tile that reads it well."""

    channels_last: bool
    rows: int
    channels: int
    stride_n: int
    stride_c: int
    pixels: int  # adjacent in memory, of one channel

    @classmethod
    def of(cls, x: Tensor) -> "_Layout":
        _, n, channels, *space = x.shape
        pixels = prod(space)
        if x[0].movedim(1, -1).is_contiguous():
            return cls(True, n * pixels, channels, channels, 1, 1)
        return cls(False, n * pixels, channels, channels * pixels, pixels, pixels)

    def fit(self, x: Tensor) -> Tensor:
        """x itself where its steps lie like this or are bits, else a copy that does."""
        if are_bits(x):
            return x
        step = x[0].movedim(1, -1) if self.channels_last else x[0]
        if step.is_contiguous():
            return x
        return x.movedim(2, -1).contiguous().movedim(-1, 2) if self.channels_last else x.contiguous()

    def empty(self, x: Tensor) -> Tensor:
        """A new tensor of x's shape and type that lies like this."""
        if not self.channels_last:
            return torch.empty(x.shape, dtype=x.dtype, device=x.device)
        t, n, channels, *space = x.shape
        return torch.empty(t, n, *space, channels, dtype=x.dtype, device=x.device).movedim(-1, 2)

    def tile(self, step: str) -> dict[str, int]:
        elements, warps, _ = TILES[step]
        widest = max(1, WIDEST_TILE // triton.next_power_of_2(self.pixels))
        width = min(triton.next_power_of_2(self.channels), widest)
        return {"ROWS": elements // width, "CHANNELS": width, "num_warps": warps}

    def grid(self, step: str, sharing: int = 1) -> tuple[int, int]:
        """Programs over rows, of which so many are `sharing` bytes, and over blocks of channels."""
        tile, programs = self.tile(step), TILES[step].programs
        tiles, blocks = triton.cdiv(self.rows // sharing, tile["ROWS"]), triton.cdiv(self.channels, tile["CHANNELS"])
        return min(tiles, triton.cdiv(programs, blocks) if programs else tiles), blocks


def _segment(steps: int) -> int:
    """The shortest segment that needs no more segments than the longest would."""
    return triton.cdiv(steps, triton.cdiv(steps, LONGEST_SEGMENT))


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


def _constants(x: Tensor, neurons: Neurons) -> dict[str, Any]:
    branches, constants = len(neurons.weight), neurons.constants
    return {
        "T": x.shape[0],
        "SEGMENT": _segment(x.shape[0]),
        "BRANCHES": branches,
        "K": constants.v_th * branches**-0.5,
        "EPS": constants.eps,
        "DECAY": constants.decay,
        "LEARNT": neurons.decays is not None,
        "V_TH": constants.v_th,
        "SOFT": constants.reset == "soft",
        "ACC": _accumulator(x.dtype),
    }


def _tensors(neurons: Neurons) -> list[Tensor | None]:
    return [None if p is None else p.contiguous() for p in neurons[:-1]]


def _per_byte(x: Tensor, steps: int) -> int:
    """How many neurons share a byte of a branch; 0 if it is no bits."""
    return 8 // steps if are_bits(x) else 0


@on_device_of_first
def statistics(xs: list[Tensor]) -> Tensor:
    dtype, n = torch.promote_types(xs[0].dtype, torch.float32), len(xs)
    found = torch.empty(2 * n + 1, xs[0].shape[2], dtype=dtype, device=xs[0].device)
    for branch, x in enumerate(map(one_step_if_static, xs)):
        sequence = xs[0] if are_bits(x) else x
        layout = _Layout.of(sequence)
        x = layout.fit(x)
        steps = sequence.shape[0]
        tile = layout.tile("statistics")
        grid = layout.grid("statistics")
        partial = torch.empty(grid[0], 2, layout.channels, dtype=dtype, device=x.device)
        shifts = torch.empty(layout.channels, dtype=dtype, device=x.device)
        on_grid(triton_statistics.statistics_kernel, grid)(
            x, partial, shifts, layout.rows, layout.channels, x.stride(0), layout.stride_n, layout.stride_c,
            T=steps, SEGMENT=_segment(steps), PIXELS=layout.pixels, PER_BYTE=_per_byte(x, steps),
            ACC=_accumulator(dtype), **tile,
        )  # fmt: skip
        on_grid(triton_statistics.join_statistics_kernel, (triton.cdiv(layout.channels, 4),))(
            partial, shifts, found[branch], found[n + branch], found[2 * n],
            layout.rows, layout.channels, steps, xs[0].shape[0] // steps, grid[0],
            ACC=_accumulator(dtype), ROWS=tile["ROWS"], PROGRAMS=triton.next_power_of_2(grid[0]), CHANNELS=4,
            num_warps=8,
        )  # fmt: skip
    return found


@on_device_of_first
def join(everyone: Tensor) -> Tensor:
    members, rows, channels = everyone.shape
    found = torch.empty_like(everyone[0])
    on_grid(triton_statistics.join_members_kernel, (triton.cdiv(channels, 128), rows // 2))(
        everyone, found, members, channels, BRANCHES=rows // 2, CHANNELS=128, num_warps=4
    )
    return found


@on_device_of_first
def forward(xs: list[Tensor], neurons: Neurons, pack: bool) -> tuple[Tensor, Tensor]:
    layout = _Layout.of(xs[0])
    xs = [layout.fit(x) for x in xs]
    spikes, packed = layout.empty(xs[0]), are_bits(xs[-1])
    sharing = neurons_per_byte(spikes) if pack or packed else 0
    bits = torch.empty(spikes.numel() // 8 if pack and sharing else 0, dtype=torch.uint8, device=spikes.device)
    tile = layout.tile("forward")
    on_grid(kernels.forward_kernel, layout.grid("forward", sharing or 1))(
        xs[0], xs[-1], spikes, bits if len(bits) else None, *_tensors(neurons),
        layout.rows, layout.channels, xs[0].stride(0), xs[-1].stride(0), spikes.stride(0),
        layout.stride_n, layout.stride_c,
        PIXELS=layout.pixels, PACKED=packed, SHARING=sharing or 1, **_constants(xs[0], neurons), **tile,
    )  # fmt: skip
    return spikes, bits


@on_device_of_first
def backward_sums(grad: Tensor, xs: list[Tensor], neurons: Neurons, keep: bool = False) -> tuple[Tensor, Tensor]:
    layout = _Layout.of(xs[0])
    grid = layout.grid("backward_sums")
    xs = [layout.fit(x) for x in xs]
    rows = sums_rows(neurons)
    partial = neurons.weight.new_empty(grid[0], rows, layout.channels)
    _backward(layout, "backward_sums", grad, xs, [partial], neurons)
    sums = torch.empty_like(partial[0])
    on_grid(kernels.join_sums_kernel, (triton.cdiv(layout.channels, 4), rows))(
        partial, sums, neurons.var.contiguous(), layout.channels, grid[0],
        BRANCHES=len(xs), LEARNT=neurons.decays is not None,
        K=neurons.constants.v_th * len(xs) ** -0.5, EPS=neurons.constants.eps,
        PROGRAMS=triton.next_power_of_2(grid[0]), CHANNELS=4, num_warps=8,
    )  # fmt: skip
    return sums, sums.new_empty(0)


@on_device_of_first
def backward_inputs(
    grad: Tensor,
    xs: list[Tensor],
    neurons: Neurons,
    du: Tensor,
    sums: Tensor,
    count: float,
    overwritten: Collection[int],
) -> list[Tensor]:
    layout = _Layout.of(xs[0])
    fitted = [layout.fit(x) for x in xs]
    outs = [
        x if i in overwritten else layout.empty(grad if are_bits(x) else one_step_if_static(x))
        for i, x in enumerate(fitted)
    ]
    finite = 0 if isinf(count) else round(count)
    _backward(layout, "backward_inputs", grad, fitted, outs, neurons, sums, finite)
    for i in overwritten:
        if outs[i] is not xs[i]:  # it did not lie as the kernel needs it
            xs[i].copy_(outs[i])
    return outs


def _backward(
    layout: _Layout,
    step: str,
    grad: Tensor,
    xs: list[Tensor],
    outs: list[Tensor],
    neurons: Neurons,
    sums: Tensor | None = None,
    count: int = 0,
) -> None:
    grad = layout.fit(grad)
    constants = _constants(grad, neurons)
    segments = triton.cdiv(grad.shape[0], constants["SEGMENT"])
    starts = neurons.weight.new_empty(segments - 1, grad[0].numel()) if segments > 1 else None
    on_grid(kernels.backward_kernel, layout.grid(step))(
        grad, xs[0], xs[-1], outs[0], outs[-1], starts, *_tensors(neurons), sums, count,
        layout.rows, layout.channels, *(x.stride(0) for x in (grad, xs[0], xs[-1], outs[0], outs[-1])),
        grad[0].numel(), layout.stride_n, layout.stride_c,
        PIXELS=layout.pixels, STATIC1=is_static(xs[0]), STATIC2=is_static(xs[-1]),
        PER_BYTE=_per_byte(xs[-1], len(grad)), SUMS=sums is None, ALONE=TILES[step].programs is None,
        RESET_GRADIENT=neurons.constants.reset_gradient, SURROGATE=neurons.constants.surrogate,
        WIDTH=neurons.constants.width, **constants, **layout.tile(step),
    )  # fmt: skip


@on_device_of_first
def integrate(xs: list[Tensor], neurons: BareNeurons) -> Tensor:
    layout = _Layout.of(xs[0])
    xs = [layout.fit(x) for x in xs]
    spikes = layout.empty(xs[0])
    tile = layout.tile("forward")
    scales, steps = neurons.scales, len(xs[0])
    vectors = (scales[0], scales[-1], neurons.bias, neurons.v_th, neurons.decays, neurons.initials)
    on_grid(kernels.integrate_kernel, layout.grid("forward"))(
        xs[0], xs[-1], spikes, *(None if p is None else p.contiguous() for p in vectors),
        layout.rows, layout.channels, xs[0].stride(0), xs[-1].stride(0), spikes.stride(0),
        layout.stride_n, layout.stride_c,
        T=steps, SEGMENT=_segment(steps), PIXELS=layout.pixels, BRANCHES=len(xs),
        DECAY=neurons.decay, SOFT=neurons.reset == "soft",
        ONE=0.0 if neurons.fraction_bits is None else 2.0**neurons.fraction_bits, ACC=_accumulator(xs[0].dtype), **tile,
    )  # fmt: skip
    return spikes


@on_device_of_first
def pack(spikes: Tensor, bits: Tensor) -> None:
    """Into bits [W] of packed spikes, from spikes in memory order [numel] (see `packing`)."""
    on_grid(kernels.pack_kernel, (triton.cdiv(len(bits), 1024),))(spikes, bits, len(spikes), len(bits), BLOCK=1024)


@on_device_of_first
def unpack(bits: Tensor, spikes: Tensor) -> None:
    on_grid(kernels.unpack_kernel, (triton.cdiv(len(bits), 1024),))(bits, spikes, len(spikes), len(bits), BLOCK=1024)
