"""Statistics of a batch that is spread over a process group: one collective forward, one backward.

They are sent as one tensor [2n + 1, C]: means and variances of n branches, and the number of values in the last row.
The host never reads this number, so a CUDA graph can hold the step.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rheobase.functional import Moments

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # renamed in torch 2.13


def gathered(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensors of all members: [members, ...]."""
    everyone = own.new_empty(dist.get_world_size(group), *own.shape)
    _all_gather(everyone.flatten(0, 1), own, group=group)
    return everyone


def joined(everyone: Tensor) -> Tensor:
    """Join the statistics [members, 2n + 1, C] of all members into one [2n + 1, C].

    This avoids cancellation (Chan et al. 1979). The last row is the inverse of the number of all values.
    """
    n = everyone.shape[1] // 2
    means, variances, counts = everyone.split([n, n, 1], dim=1)
    total = counts.sum(0)
    mean = (means * counts).sum(0) / total
    var = (counts * (variances + (means - mean).square())).sum(0) / total
    return torch.cat([mean, var, 1 / total])


def joined_moments(xs: Sequence[Tensor], group: dist.ProcessGroup) -> Moments:
    """Return `functional.moments` of every branch over all members, each [n, C], with gradients for every member."""
    values = torch.stack([x.movedim(2, 0).flatten(1) for x in xs])
    mean = values.mean(2)
    var = (values - mean[..., None]).square().mean(2)
    own = torch.cat([mean, var, torch.full_like(mean[:1], values.shape[2])])
    mean, var, _ = joined(_Gather.apply(own, group)).split([len(xs), len(xs), 1])
    return mean, var


class _Gather(torch.autograd.Function):
    """`gathered`, with derivatives of any order: `_Gather` and `_Collect` are each other's adjoint."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return gathered(own, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Collect.apply(grads[0], ctx.group), None


class _Collect(torch.autograd.Function):
    """Sum the parts [members, ...] that all members hold for this one."""

    @staticmethod
    def forward(ctx: Any, everyone: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = everyone.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grads[0].contiguous(), ctx.group), None
