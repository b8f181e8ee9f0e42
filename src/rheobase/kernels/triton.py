"""The four steps of the fused soma on a GPU: layouts, tiles and launches of the Triton kernels."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels import triton_kernels as kernels
from rheobase.kernels.fused import is_static, one_step_if_static

LONGEST_SEGMENT = 8


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
        pixels = 1
        for size in space:
            pixels *= size
        if x[0].movedim(1, -1).is_contiguous():
            return cls(True, n * pixels, channels, channels, 1, 1)
        return cls(False, n * pixels, channels, channels * pixels, pixels, pixels)

    def fit(self, x: Tensor) -> Tensor:
        """x itself where its steps lie like this, else a copy that does."""
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

    def tile(self, elements: int) -> dict[str, int]:
        width = min(triton.next_power_of_2(self.channels), 128) if self.channels_last else 1
        return {"ROWS": max(elements // width, 1), "CHANNELS": width}

    def chunk(self, rows_per_tile: int, device: torch.device) -> int:
        """Rows of one program in a reduction: whole tiles, so many that the programs just fill the device."""
        programs = 1024 if device.type == "cuda" else 2
        tiles = triton.cdiv(self.rows, rows_per_tile)
        return triton.cdiv(tiles, programs) * rows_per_tile

    def grid(self, rows: int, width: int) -> tuple[int, int]:
        return triton.cdiv(self.rows, rows), triton.cdiv(self.channels, width)


def _constants(x: Tensor, branches: int, decay: float, v_th: float, eps: float) -> dict[str, Any]:
    steps = x.shape[0]
    return {
        "T": steps,
        "SEGMENT": triton.cdiv(steps, triton.cdiv(steps, LONGEST_SEGMENT)),
        "BRANCHES": branches,
        "K": v_th * branches**-0.5,
        "EPS": eps,
        "DECAY": decay,
        "V_TH": v_th,
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "num_warps": 4,
    }


def statistics(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(xs[0].dtype, torch.float32)
    mean = torch.empty(len(xs), xs[0].shape[2], dtype=dtype, device=xs[0].device)
    squares = torch.empty_like(mean)
    acc = tl.float64 if dtype == torch.float64 else tl.float32
    for branch, whole in enumerate(xs):
        x = one_step_if_static(whole)
        layout = _Layout.of(x)
        x = layout.fit(x)
        tile = layout.tile(1024)
        chunk = layout.chunk(tile["ROWS"], x.device)
        grid = layout.grid(chunk, tile["CHANNELS"])
        partial = torch.empty(grid[0], 2, layout.channels, dtype=dtype, device=x.device)
        kernels.statistics_kernel[grid](
            x, partial, layout.rows, layout.channels, x.shape[0], x.stride(0), layout.stride_n, layout.stride_c, chunk,
            PIXELS=layout.pixels, ACC=acc, num_warps=4, **tile,
        )  # fmt: skip
        width = 16
        kernels.join_statistics_kernel[(triton.cdiv(layout.channels, width),)](
            partial, mean[branch], squares[branch], layout.rows, layout.channels, x.shape[0],
            whole.shape[0] // x.shape[0], chunk, grid[0],
            ACC=acc, CHUNKS=triton.next_power_of_2(grid[0]), CHANNELS=width,
        )  # fmt: skip
    return mean, squares


def forward(
    xs: list[Tensor], weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, decay: float, v_th: float, eps: float
) -> Tensor:
    layout = _Layout.of(xs[0])
    xs = [layout.fit(x) for x in xs]
    spikes = layout.empty(xs[0])
    tile = layout.tile(512)
    kernels.forward_kernel[layout.grid(tile["ROWS"], tile["CHANNELS"])](
        xs[0], xs[-1], spikes, weight.contiguous(), bias.contiguous(), mean.contiguous(), var.contiguous(),
        layout.rows, layout.channels, xs[0].stride(0), xs[-1].stride(0), spikes.stride(0),
        layout.stride_n, layout.stride_c,
        PIXELS=layout.pixels, **_constants(xs[0], len(xs), decay, v_th, eps), **tile,
    )  # fmt: skip
    return spikes


def backward_sums(
    grad: Tensor,
    xs: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    decay: float,
    v_th: float,
    width: float,
    eps: float,
) -> Tensor:
    layout = _Layout.of(xs[0])
    tile = layout.tile(512)
    chunk = layout.chunk(tile["ROWS"], grad.device)
    partial = weight.new_empty(triton.cdiv(layout.rows, chunk), 1 + len(xs), layout.channels)
    shared = (weight, bias, mean, var)
    _backward(layout, tile, chunk, grad, xs, [partial], shared, None, 1.0, decay, v_th, width, eps)
    return partial.sum(0)


def backward_inputs(
    grad: Tensor,
    xs: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    sums: Tensor,
    count: float,
    decay: float,
    v_th: float,
    width: float,
    eps: float,
) -> list[Tensor]:
    layout = _Layout.of(xs[0])
    tile = layout.tile(512)
    outs = [layout.empty(one_step_if_static(x)) for x in xs]
    shared = (weight, bias, mean, var)
    _backward(layout, tile, tile["ROWS"], grad, xs, outs, shared, sums, count, decay, v_th, width, eps)
    return outs


def _backward(
    layout: _Layout,
    tile: dict[str, int],
    chunk: int,
    grad: Tensor,
    xs: list[Tensor],
    outs: list[Tensor],
    shared: tuple[Tensor, ...],
    sums: Tensor | None,
    count: float,
    decay: float,
    v_th: float,
    width: float,
    eps: float,
) -> None:
    grad, *xs = (layout.fit(x) for x in (grad, *xs))
    constants = _constants(grad, len(xs), decay, v_th, eps)
    segments = triton.cdiv(grad.shape[0], constants["SEGMENT"])
    starts = shared[0].new_empty(segments - 1, grad[0].numel()) if segments > 1 else None
    kernels.backward_kernel[layout.grid(chunk, tile["CHANNELS"])](
        grad, xs[0], xs[-1], outs[0], outs[-1], starts, *(p.contiguous() for p in shared), sums, 1 / count,
        layout.rows, layout.channels, *(x.stride(0) for x in (grad, xs[0], xs[-1], outs[0], outs[-1])),
        grad[0].numel(), layout.stride_n, layout.stride_c, chunk,
        PIXELS=layout.pixels, STATIC1=is_static(xs[0]), STATIC2=is_static(xs[-1]), SUMS=sums is None, WIDTH=width,
        **constants, **tile,
    )  # fmt: skip


def pack(spikes: Tensor, bits: Tensor) -> None:
    """Into bits [W] of packed spikes, from spikes in memory order [numel] (see `packing`)."""
    kernels.pack_kernel[(triton.cdiv(len(bits), 1024),)](spikes, bits, len(spikes), len(bits), BLOCK=1024)


def unpack(bits: Tensor, spikes: Tensor) -> None:
    kernels.unpack_kernel[(triton.cdiv(len(bits), 1024),)](bits, spikes, len(spikes), len(bits), BLOCK=1024)
