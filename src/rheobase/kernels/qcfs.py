"""`functional.qcfs` in one pass over memory. Its many small operations would cost more than the convolution before."""

from typing import Any

import torch
from torch import Tensor

from rheobase import functional
from rheobase.extras import installed
from rheobase.kernels.fused import refuse_higher_derivatives


def qcfs(x: Tensor, threshold: Tensor, levels: int) -> Tensor:
    """Compute `functional.qcfs`, faster on a GPU."""
    if x.device.type == "cuda" and installed("triton"):
        return Qcfs.apply(x, threshold, levels)
    return functional.qcfs(x, threshold, levels)


class Qcfs(torch.autograd.Function):
    """`functional.qcfs` by Triton kernels, value by value in memory order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: Tensor, levels: int) -> Tensor:
        from rheobase.kernels import triton_qcfs

        x = _ordered_like(torch.empty_like(x), x)
        ctx.save_for_backward(x, threshold)
        ctx.levels = levels
        return triton_qcfs.forward(x, threshold, levels)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        from rheobase.kernels import triton_qcfs

        refuse_higher_derivatives()
        x, threshold = ctx.saved_tensors
        along_x, along_threshold = triton_qcfs.backward(x, _ordered_like(x, grads[0]), threshold, ctx.levels)
        return along_x, along_threshold.to(threshold.dtype), None


def _ordered_like(dense: Tensor, x: Tensor) -> Tensor:
    """Return x, or a copy of it, in the memory order of a dense tensor."""
    steps = [(own, wanted) for n, own, wanted in zip(x.shape, x.stride(), dense.stride(), strict=True) if n > 1]
    return x if all(own == wanted for own, wanted in steps) else torch.empty_like(dense).copy_(x)
