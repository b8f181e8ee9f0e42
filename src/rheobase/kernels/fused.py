"""The fused soma: four steps behind one autograd function, each a torch operator with one body per backend.

    statistics -> forward -> (spikes) ... (gradient of the spikes) -> backward_sums -> backward_inputs

Nothing but the inputs is kept for the backward pass; it computes the membrane potential again. With du the gradient
of the loss by the summed current, k = alpha * v_th, r = 1 / sqrt(var + eps) and M values per channel:

    d bias = sum du,  d weight = k * r * sum du * (x - mean)        (the sums, added up over the process group)
    dx = weight * k * r * (du - d bias / M - (x - mean) * r / k * d weight / M)

Constant moments (inference) are the case M = infinity.
"""

from collections.abc import Collection
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rheobase import functional


def _backend(name: str) -> ModuleType:
    return import_module(f"rheobase.kernels.{name}")


@torch.library.custom_op("rheobase::statistics", mutates_args=())
def statistics(xs: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel of every branch, each [n, C]."""
    return _backend(backend).statistics(xs)


@torch.library.custom_op("rheobase::forward", mutates_args=())
def forward(
    xs: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    decay: float,
    v_th: float,
    eps: float,
    backend: str,
) -> Tensor:
    """Spikes [T, N, C, ...]."""
    return _backend(backend).forward(xs, weight, bias, mean, var, decay, v_th, eps)


@torch.library.custom_op("rheobase::backward_sums", mutates_args=())
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
    backend: str,
) -> Tensor:
    """The gradients of any bias and of every weight: [1 + n, C]."""
    return _backend(backend).backward_sums(grad, xs, weight, bias, mean, var, decay, v_th, width, eps)


@torch.library.custom_op("rheobase::backward_inputs", mutates_args=())
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
    backend: str,
) -> list[Tensor]:
    """The gradient of every branch; of a static one [1, N, C, ...], the mean over T of what its steps receive."""
    return _backend(backend).backward_inputs(grad, xs, weight, bias, mean, var, sums, count, decay, v_th, width, eps)


@statistics.register_fake
def _(xs: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    n, channels = len(xs), xs[0].shape[2]
    dtype = torch.promote_types(xs[0].dtype, torch.float32)
    return xs[0].new_empty(n, channels, dtype=dtype), xs[0].new_empty(n, channels, dtype=dtype)


@forward.register_fake
def _(xs: list[Tensor], weight: Tensor, *args: Any) -> Tensor:
    return empty_like_sequence(xs[0])


@backward_sums.register_fake
def _(grad: Tensor, xs: list[Tensor], weight: Tensor, *args: Any) -> Tensor:
    return weight.new_empty(1 + weight.shape[0], weight.shape[1])


@backward_inputs.register_fake
def _(grad: Tensor, xs: list[Tensor], *args: Any) -> list[Tensor]:
    return [empty_like_sequence(one_step_if_static(x)) for x in xs]


def is_static(x: Tensor) -> bool:
    """Whether every step of x is the same memory."""
    return x.stride(0) == 0 and x.shape[0] > 1


def one_step_if_static(x: Tensor) -> Tensor:
    return x[:1] if is_static(x) else x


def empty_like_sequence(x: Tensor) -> Tensor:
    """A new tensor of x's shape and type, dense, in the memory order of one step of x (channels last or first)."""
    order = sorted(range(1, x.ndim), key=lambda d: x.stride(d), reverse=True)
    shape = [x.shape[0], *(x.shape[d] for d in order)]
    back = [0] * x.ndim
    for position, d in enumerate([0, *order]):
        back[d] = position
    return torch.empty(shape, dtype=x.dtype, device=x.device).permute(back)


class Settings(NamedTuple):
    """What a soma hands down beside tensors."""

    decay: float
    v_th: float
    width: float
    eps: float
    group: dist.ProcessGroup | None
    backend: str


class Result(NamedTuple):
    spikes: Tensor
    mean: Tensor
    var: Tensor
    values: float  # per channel, behind the moments; infinite if those were given


def run_forward(
    xs: list[Tensor], weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None, settings: Settings
) -> Result:
    """The first two steps; without mean and var, with the moments of the batch."""
    decay, v_th, _, eps, group, backend = settings
    count = float("inf")
    if mean is None or var is None:
        for x in xs:
            functional.check_count(one_step_if_static(x))
        mean, var = statistics(xs, backend)
        count = xs[0].numel() / xs[0].shape[2]
        if group is not None:
            mean, var, count = _joined_statistics(mean, var, count, group)
    return Result(forward(xs, weight, bias, mean, var, decay, v_th, eps, backend), mean, var, count)


def run_backward(
    grad: Tensor,
    xs: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    count: float,
    settings: Settings,
    disposable: Collection[int] = (),
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The last two steps: gradients of weight, bias and every branch; those of `disposable` ones overwrite them."""
    decay, v_th, width, eps, group, backend = settings
    shared = (weight, bias, mean, var)
    sums = backward_sums(grad, xs, *shared, decay, v_th, width, eps, backend)
    grad_weight, grad_bias = sums[1:], sums[:1].expand_as(bias)
    if group is not None:
        sums = sums.clone()
        dist.all_reduce(sums, group=group)
    inputs = (grad, xs, *shared, sums, count, decay, v_th, width, eps)
    if disposable:  # not for the operator: its results must be new tensors
        grads = _backend(backend).backward_inputs(*inputs, disposable=disposable)
    else:
        grads = backward_inputs(*inputs, backend)
    return grad_weight, grad_bias, [g.expand_as(x) for g, x in zip(grads, xs, strict=True)]


def refuse_higher_derivatives() -> None:
    """To be called in a backward pass. (torch's `once_differentiable` lets some of them pass as zeros.)"""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the kernels of a Soma know first derivatives only; "
            "rheobase.analysis.somas.observable(network) is a copy that knows all"
        )


class FusedFire(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        *xs: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        result = run_forward(list(xs), weight, bias, mean, var, settings)
        ctx.save_for_backward(weight, bias, result.mean, result.var, *xs)
        ctx.settings, ctx.count = settings, result.values
        ctx.mark_non_differentiable(result.mean, result.var)
        return result.spikes, result.mean, result.var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_higher_derivatives()
        weight, bias, mean, var, *xs = ctx.saved_tensors
        grad_weight, grad_bias, grad_xs = run_backward(grads[0], xs, weight, bias, mean, var, ctx.count, ctx.settings)
        return None, grad_weight, grad_bias, None, None, *grad_xs


def _joined_statistics(
    mean: Tensor, var: Tensor, count: float, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, float]:
    """Combine every member's mean, variance and count without cancellation (Chan et al. 1979)."""
    own = torch.cat([mean, var, torch.full_like(mean[:1], count)])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    means, variances, counts = torch.stack(everyone).split([len(mean), len(mean), 1], dim=1)
    total = counts.sum(0)
    joined = (means * counts).sum(0) / total
    joined_var = (counts * (variances + (means - joined).square())).sum(0) / total
    return joined, joined_var, float(total[0, 0])
