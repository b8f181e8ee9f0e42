"""Statistics of a batch that the members of a process group hold in parts, combined without cancellation."""

import torch
import torch.distributed as dist
from torch import Tensor

from rheobase.functional import Moments


def joined_statistics(
    mean: Tensor, var: Tensor, count: float, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of all members, from each one's own of `count` values per channel (Chan et al. 1979).

    The third result is this member's share of all values, [1, C]: a tensor, since the host must not wait for it.
    """
    own = torch.cat([mean, var, torch.full_like(mean[:1], count)])
    everyone = own.new_empty(dist.get_world_size(group), *own.shape)
    dist.all_gather_into_tensor(everyone.flatten(0, 1), own, group=group)
    means, variances, counts = everyone.split([len(mean), len(mean), 1], dim=1)
    total = counts.sum(0)
    joined = (means * counts).sum(0) / total
    joined_var = (counts * (variances + (means - joined).square())).sum(0) / total
    return joined, joined_var, count / total


def joined_moments(x: Tensor, group: dist.ProcessGroup) -> Moments:
    """`functional.moments` of what all members hold of x [T, N, C, ...], with derivatives through every part."""
    from torch.distributed.nn.functional import all_reduce

    values = x.movedim(2, 0).flatten(1)
    total = all_reduce(torch.full_like(values[:, 0], values.shape[1]), group=group)
    mean = all_reduce(values.sum(1), group=group) / total
    return mean, all_reduce((values - mean[:, None]).square().sum(1), group=group) / total
