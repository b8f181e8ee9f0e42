"""Cast weights to the type that autocast computes in: once and for all, or many together instead of one by one."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rheobase.deploy.convolution import FrozenConv2d
from rheobase.nn import Conv2d, together

__all__ = ["hold_weights"]

SYNAPSES = (nn.Conv2d, nn.Linear, Conv2d, FrozenConv2d)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
PORTION = 2**22  # values to cast at once; limits how many half-precision gradients must be kept at a time


def synapses(network: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """Return the layers, by name, whose weights are used only in operations that autocast casts them for.

    Layers in a user's own part are left out: it may disable autocast for a layer, or read or change its weight.
    """
    theirs = {p for module in network.modules() if not _is_known(module) for p in module.parameters()}
    found = {name: module for name, module in network.named_modules() if type(module) in SYNAPSES}
    return {
        name: module
        for name, module in found.items()
        if isinstance(module._parameters.get("weight"), Tensor) and theirs.isdisjoint(module.parameters())
    }


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    return kind in SYNAPSES or kind in CONTAINERS or kind.__module__.startswith("rheobase.")


def hold_weights(network: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of synapses to `dtype`, for inference under autocast. The results stay the same.

    Biases are not converted: the neurons of a deployed network add them in float32.
    """
    for synapse in synapses(network).values():
        synapse.weight = nn.Parameter(synapse.weight.detach().to(dtype), requires_grad=False)


def in_few_kernels(network: nn.Module, dtype: torch.dtype | None) -> Callable[..., Tensor]:
    """Return a function that computes the same as the network in a training step, with fewer small operations.

    All running statistics are updated together. Weights that autocast would cast to `dtype` layer by layer are cast
    together, and so are their gradients in the backward pass.
    """
    portions = [] if dtype is None else list(_portions(network))

    def forward(*inputs: Any) -> Tensor:
        cast: dict[str, Tensor] = {}
        for portion in portions:
            cast |= zip(portion, _Cast.apply(dtype, *portion.values()), strict=True)
        with together():
            return functional_call(network, cast, inputs) if cast else network(*inputs)

    return forward


def _portions(network: nn.Module) -> Iterator[dict[str, nn.Parameter]]:
    """Yield the parameters of synapses by name, each once. Trained and frozen parameters are in separate portions."""
    parameters = {
        p: f"{name}.{key}" if name else key
        for name, synapse in reversed(synapses(network).items())
        for key, p in synapse._parameters.items()
        if key in ("weight", "bias") and p is not None and p.dtype == torch.float32
    }
    for learns in (True, False):
        portion: dict[str, nn.Parameter] = {}
        for p, name in parameters.items():
            if p.requires_grad != learns:
                continue
            portion[name] = p
            if sum(q.numel() for q in portion.values()) >= PORTION:
                yield portion
                portion = {}
        if portion:
            yield portion


class _Cast(torch.autograd.Function):
    """Cast tensors of one type to another, and their gradients back, in as few kernels as possible."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        ctx.set_materialize_grads(False)
        return tuple(_cast(list(tensors), dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        there = iter(_cast([grad for grad in grads if grad is not None], ctx.dtype))
        return None, *(None if grad is None else next(there) for grad in grads)


def _cast(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    made = [torch.empty_like(x, dtype=dtype) for x in tensors]
    if made:
        torch._foreach_copy_(made, tensors)
    return made
