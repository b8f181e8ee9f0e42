"""`functional.qcfs` and its gradients as Triton kernels, over values in memory order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.triton import PROGRAMS, on_device_of_first

BLOCK = 1024


@triton.jit
def share_of(x, height, ACC: tl.constexpr):
    """Divide as torch does, to the nearest number: between two levels, one rounding moves a whole level."""
    x = x.to(ACC)
    if ACC == tl.float32:
        share = tl.math.div_rn(x, height)
    else:
        share = x / height
    return share


@triton.jit
def forward_kernel(x, threshold, out, n, LEVELS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    height = tl.load(threshold).to(ACC)
    share = share_of(tl.load(x + at, at < n, other=0), height, ACC)
    share = tl.minimum(tl.maximum(share, 0.0), 1.0)
    tl.store(out + at, tl.floor(share * LEVELS + 0.5) / LEVELS * height, at < n)


@triton.jit
def backward_kernel(
    x, grad, threshold, along_x, partial, n, LEVELS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    """Pass the gradient between 0 and the threshold. Every program sums up its part of the threshold's gradient."""
    height = tl.load(threshold).to(ACC)
    total = tl.zeros((BLOCK,), ACC)
    stride = tl.num_programs(0) * BLOCK
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(n, stride)):
        g = tl.load(grad + at, at < n, other=0).to(ACC)
        share = share_of(tl.load(x + at, at < n, other=0), height, ACC)
        inside = (share >= 0.0) & (share <= 1.0)
        rounded = tl.floor(tl.minimum(tl.maximum(share, 0.0), 1.0) * LEVELS + 0.5) / LEVELS
        tl.store(along_x + at, tl.where(inside, g, 0.0), at < n)
        total += g * (rounded - tl.where(inside, share, 0.0))
        at += stride
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))


@on_device_of_first
def forward(x: Tensor, threshold: Tensor, levels: int) -> Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    forward_kernel[grid](x, threshold, out, x.numel(), LEVELS=levels, ACC=_accumulator(x), BLOCK=BLOCK)
    return out


@on_device_of_first
def backward(x: Tensor, grad: Tensor, threshold: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and, not yet rounded, of the threshold. x and grad must have the same memory order."""
    along_x = torch.empty_like(x)
    programs = min(PROGRAMS, triton.cdiv(x.numel(), BLOCK))
    partial = torch.empty(programs, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    options = {"LEVELS": levels, "ACC": _accumulator(x), "BLOCK": BLOCK}
    backward_kernel[(programs,)](x, grad, threshold, along_x, partial, x.numel(), **options)
    return along_x, partial.sum()


def _accumulator(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
