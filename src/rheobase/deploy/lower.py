"""The network with convolutions as its only synapses, for images of one size.

An identity shortcut becomes a diagonal 1x1 convolution, a linear layer one whose kernel covers its whole input, and
the pooling before it disappears into that kernel. Every synapse then meets single spikes, and any system that knows
convolutions and LIF neurons can run the network.
"""

import copy
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import LIF, Network, Scale
from rheobase.deploy.pairs import pair

Shape = tuple[int, ...]


def lower(network: Network, input_shape: Shape) -> Network:
    """`network` for images [C, H, W] of this shape, made of convolutions and LIF neurons."""
    shapes = node_shapes(network, input_shape)
    nodes: dict[str, nn.Module] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    waiting: dict[str, tuple[str, list[nn.Module]]] = {}  # pools and flattens, until their synapse takes them in
    for name, node in network.nodes.items():
        source, before = waiting.get(network.inputs[name][0], (network.inputs[name][0], []))
        if isinstance(node, (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)):
            waiting[name] = source, [*before, node]
            continue
        if isinstance(node, LIF):
            nodes[name], inputs[name] = copy.deepcopy(node), network.inputs[name]
            continue
        shape = shapes[source] if len(shapes[source]) == 3 else (*shapes[source], 1, 1)
        nodes[name], inputs[name] = _convolution(name, node, before, shape), (source,)
    return Network(
        nodes, inputs, input_unit=network.input_unit, logit_unit=network.logit_unit, info=network.info
    ).eval()


@torch.no_grad()
def node_shapes(network: Network, input_shape: Shape) -> Mapping[str, Shape]:
    """The shape of every node's output for one image [C, H, W], and of the input itself."""
    p = next(network.parameters())
    image = torch.zeros(1, *input_shape, dtype=p.dtype, device=p.device)
    return {"input": input_shape} | {name: tuple(value.shape[2:]) for name, value in network.run(image, 1)}


def diagonal(scale: Scale, pool: nn.AvgPool2d | None = None) -> nn.Conv2d:
    """The scale (after average pooling) as a convolution in which no channel sees another."""
    if pool is None:
        return convolution(torch.diag(scale.weight.detach())[:, :, None, None], _copy(scale.bias))
    size = pair(pool.kernel_size)
    share = torch.full(size, 1.0).to(scale.weight) / (pool.divisor_override or prod(size))
    weight = torch.diag(scale.weight.detach())[:, :, None, None] * share
    return convolution(weight, _copy(scale.bias), pool.stride, pool.padding)


def _convolution(name: str, node: nn.Module, before: list[nn.Module], shape: Shape) -> nn.Conv2d:
    """The convolution that does on inputs of this shape what `node` does after the pools and flattens `before` it."""
    if isinstance(node, nn.Linear):
        return convolution(_kernel_of(node.weight, nn.Sequential(*before), shape), _copy(node.bias))
    if isinstance(node, Scale) and not before:
        return diagonal(node)
    if isinstance(node, Scale) and len(before) == 1 and isinstance(before[0], nn.AvgPool2d):
        return diagonal(node, before[0])
    if isinstance(node, nn.Conv2d) and not before and node.groups == 1:
        return copy.deepcopy(node)
    raise ValueError(f"'{name}': this {type(node).__name__}, after {len(before)} pools, is not a plain convolution")


def _kernel_of(weight: Tensor, before: nn.Module, shape: Shape) -> Tensor:
    """The kernel [K, C, H, W] of a linear layer [K, F] behind linear operations: their transpose, applied to it."""
    origin = torch.zeros(len(weight), *shape, dtype=weight.dtype, device=weight.device)
    transpose = torch.func.vjp(lambda x: before(x).flatten(1), origin)[1]
    return transpose(weight.detach())[0]


def _copy(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().clone()
