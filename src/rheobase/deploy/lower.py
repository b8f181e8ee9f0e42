"""Rewrite a network so that convolutions are its only synapses, for images of one size.

An identity shortcut becomes a diagonal 1x1 convolution. A linear layer becomes a convolution whose kernel covers its
whole input. Pooling is merged into the kernel after it. Then every synapse reads single spikes, and any system with
convolutions and LIF neurons can run the network.
"""

import copy
from math import prod

import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.pairs import pair, positions

Shape = tuple[int, ...]
Part = tuple[tuple[str, ...], list[nn.Module]]  # the sum of these nodes, after these pools and flattens


def lower(network: Network, input_shape: Shape) -> Network:
    """Return `network` for images [C, H, W] of this shape, made of convolutions and LIF neurons only."""
    shapes = node_shapes(network, input_shape)
    nodes: dict[str, nn.Module] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    parts: dict[str, list[Part]] = {INPUT: [((INPUT,), [])]}  # of every node's output
    for name, node in network.nodes.items():
        read = _joined([part for source in network.inputs[name] for part in parts[source]])
        if isinstance(node, (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)):
            parts[name] = [(sources, [*before, node]) for sources, before in read]
            continue
        if isinstance(node, LIF):
            if any(before for _, before in read):
                raise ValueError(f"'{name}': these neurons read from a pool; put it before their synapse")
            nodes[name], inputs[name] = copy.deepcopy(node), tuple(s for sources, _ in read for s in sources)
            parts[name] = [((name,), [])]
            continue
        made = []
        for i, (sources, before) in enumerate(read):  # one synapse becomes several if its inputs are pooled differently
            shape = shapes[sources[0]] if len(shapes[sources[0]]) == 3 else (*shapes[sources[0]], 1, 1)
            made.append(name if i == 0 else f"{name}__{i}")
            nodes[made[i]], inputs[made[i]] = _convolution(name, node, before, shape, with_bias=i == 0), sources
            shapes[made[i]] = shapes[name]
        parts[name] = [(tuple(made), [])]
    (logits, before), *others = parts[name]
    if others or before or len(logits) > 1:
        raise ValueError(f"'{name}' computes the logits, but is not one convolution; compute them in one synapse")
    return Network(
        nodes,
        inputs,
        input_unit=network.input_unit,
        input_largest=network.input_largest,
        logit_unit=network.logit_unit,
        info=network.info,
    ).eval()


def origin(name: str, network: Network) -> str:
    """Return the node of `network` that the synapse `name` of the lowered network, or a part of that synapse, was."""
    return name if name in network.nodes else name.rpartition("__")[0]


def _joined(parts: list[Part]) -> list[Part]:
    """Join the parts that go through the same pools."""
    joined: list[Part] = []
    for sources, before in parts:
        same = next((i for i, (_, pools) in enumerate(joined) if _equal(pools, before)), None)
        if same is None:
            joined.append((sources, before))
        else:
            joined[same] = (*joined[same][0], *sources), before
    return joined


def _equal(a: list[nn.Module], b: list[nn.Module]) -> bool:
    kinds = [[nn.Flatten if isinstance(node, nn.Flatten) else node for node in nodes] for nodes in (a, b)]
    return kinds[0] == kinds[1]


@torch.no_grad()
def node_shapes(network: Network, input_shape: Shape) -> dict[str, Shape]:
    """Return the shape of every node's output for one image [C, H, W], and of the input."""
    p = next(network.parameters())
    image = torch.zeros(1, *input_shape, dtype=p.dtype, device=p.device)
    return {INPUT: input_shape} | {name: tuple(value.shape[2:]) for name, value in network.run(image, 1)}


def diagonal(scale: Scale) -> nn.Conv2d:
    """Return the scale as a 1x1 convolution with a diagonal weight."""
    return convolution(torch.diag(scale.weight.detach())[:, :, None, None], _copy(scale.bias))


def as_scale(conv: nn.Conv2d) -> Scale | None:
    """Return a convolution as a scale if it scales every channel on its own, as one from `diagonal` does."""
    plain = conv.kernel_size == conv.stride == (1, 1) and conv.padding == (0, 0) and conv.groups == 1
    if not plain or conv.in_channels != conv.out_channels:
        return None
    square = conv.weight.detach()[:, :, 0, 0]
    weight = square.diagonal()
    if not torch.equal(square, weight.diag()):
        return None
    bias = conv.bias if conv.bias is not None and conv.bias.any() else None
    return Scale(weight.clone(), _copy(bias))


def _convolution(name: str, node: nn.Module, before: list[nn.Module], shape: Shape, *, with_bias: bool) -> nn.Conv2d:
    """Return a convolution that computes the same as `before` followed by `node`, on inputs of this shape."""
    conv: nn.Conv2d
    if isinstance(node, nn.Linear):
        conv = convolution(_kernel_of(node.weight, nn.Sequential(*before), shape), _copy(node.bias))
    elif isinstance(node, Scale):
        conv = _after_pools(name, diagonal(node), before, shape)
    else:
        assert isinstance(node, nn.Conv2d)
        conv = _after_pools(name, copy.deepcopy(node), before, shape)
    if not with_bias:
        conv.bias = None
    return conv


def _after_pools(name: str, conv: nn.Conv2d, pools: list[nn.Module], shape: Shape) -> nn.Conv2d:
    """Return the pools and the convolution after them as one convolution, which spreads each weight over a window."""
    if conv.groups != 1:
        raise ValueError(f"'{name}': a convolution in {conv.groups} groups is not a plain convolution")
    sizes = [shape[1:]]
    for pool in pools:
        if not isinstance(pool, nn.AvgPool2d):
            raise ValueError(f"'{name}': a convolution after {type(pool).__name__} is not a plain convolution")
        sizes.append(positions(sizes[-1], pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)))
    for pool, size, pooled in reversed(list(zip(pools, sizes, sizes[1:], strict=False))):
        assert isinstance(pool, nn.AvgPool2d)
        kernel, stride, padding = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
        own_padding = pair(conv.padding)
        for n, after, k, s, p, own in zip(size, pooled, kernel, stride, padding, own_padding, strict=True):
            # the convolution pads with zeros, so windows beyond the edges must not reach into the image
            if own and (k > s + p or after * s - p < n):
                raise ValueError(
                    f"'{name}': a padded convolution after a pool (window {k}, stride {s}, {n} pixels) is not a plain "
                    "convolution; choose windows that cover the image without overlap"
                )
        share = torch.full((1, 1, *kernel), 1 / (pool.divisor_override or prod(kernel))).to(conv.weight)
        step = [d * s for d, s in zip(conv.dilation, stride, strict=True)]
        spread = nn.functional.conv_transpose2d(conv.weight.detach().flatten(0, 1)[:, None], share, stride=step)
        conv = convolution(
            spread.view(*conv.weight.shape[:2], *spread.shape[2:]),
            conv.bias,
            tuple(own * s for own, s in zip(conv.stride, stride, strict=True)),
            tuple(own * s + p for own, s, p in zip(own_padding, stride, padding, strict=True)),
        )
    return conv


def _kernel_of(weight: Tensor, before: nn.Module, shape: Shape) -> Tensor:
    """Return the kernel [K, C, H, W] of a linear layer [K, F] after linear operations: apply their transpose to it."""
    origin = torch.zeros(len(weight), *shape, dtype=weight.dtype, device=weight.device)
    transpose = torch.func.vjp(lambda x: before(x).flatten(1), origin)[1]
    return transpose(weight.detach())[0]


def _copy(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().clone()
