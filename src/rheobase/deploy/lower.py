"""The network with convolutions as its only synapses, for images of one size.

An identity shortcut becomes a diagonal 1x1 convolution, a linear layer one whose kernel covers its whole input, and
pooling disappears into the kernel behind it. Every synapse then meets single spikes, and any system that knows
convolutions and LIF neurons can run the network.
"""

import copy
from math import prod

import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import INPUT, LIF, Network, Scale
from rheobase.deploy.pairs import pair

Shape = tuple[int, ...]
Part = tuple[tuple[str, ...], list[nn.Module]]  # the sum of these nodes, behind these pools and flattens


def lower(network: Network, input_shape: Shape) -> Network:
    """`network` for images [C, H, W] of this shape, made of convolutions and LIF neurons."""
    shapes = node_shapes(network, input_shape)
    nodes: dict[str, nn.Module] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    parts: dict[str, list[Part]] = {INPUT: [((INPUT,), [])]}  # of what every node yields
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
        for i, (sources, before) in enumerate(read):  # where some of what it reads is pooled, it becomes several
            shape = shapes[sources[0]] if len(shapes[sources[0]]) == 3 else (*shapes[sources[0]], 1, 1)
            made.append(name if i == 0 else f"{name}__{i}")
            nodes[made[i]], inputs[made[i]] = _convolution(name, node, before, shape, with_bias=i == 0), sources
            shapes[made[i]] = shapes[name]
        parts[name] = [(tuple(made), [])]
    (logits, before), *others = parts[name]
    if others or before or len(logits) > 1:
        raise ValueError(f"'{name}' yields the logits, but cannot be one convolution; let one synapse yield them")
    return Network(
        nodes,
        inputs,
        input_unit=network.input_unit,
        input_largest=network.input_largest,
        logit_unit=network.logit_unit,
        info=network.info,
    ).eval()


def _joined(parts: list[Part]) -> list[Part]:
    """One for all that go through the same pools."""
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
    """The shape of every node's output for one image [C, H, W], and of the input itself."""
    p = next(network.parameters())
    image = torch.zeros(1, *input_shape, dtype=p.dtype, device=p.device)
    return {INPUT: input_shape} | {name: tuple(value.shape[2:]) for name, value in network.run(image, 1)}


def diagonal(scale: Scale) -> nn.Conv2d:
    """The scale as a convolution in which no channel sees another."""
    return convolution(torch.diag(scale.weight.detach())[:, :, None, None], _copy(scale.bias))


def _convolution(name: str, node: nn.Module, before: list[nn.Module], shape: Shape, *, with_bias: bool) -> nn.Conv2d:
    """The convolution that does on inputs of this shape what `node` does after the pools and flattens `before` it."""
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
    """The convolution behind the pools as a single one, whose kernel spreads every weight over a window."""
    if conv.groups != 1:
        raise ValueError(f"'{name}': a convolution in {conv.groups} groups is not a plain convolution")
    sizes = [shape[1:]]
    for pool in pools:
        if not isinstance(pool, nn.AvgPool2d):
            raise ValueError(f"'{name}': a convolution behind {type(pool).__name__} is not a plain convolution")
        windows = zip(sizes[-1], pair(pool.kernel_size), pair(pool.stride), pair(pool.padding), strict=True)
        sizes.append(tuple((n + 2 * p - k) // s + 1 for n, k, s, p in windows))
    for pool, size, pooled in reversed(list(zip(pools, sizes, sizes[1:], strict=False))):
        assert isinstance(pool, nn.AvgPool2d)
        kernel, stride, padding = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
        own_padding = pair(conv.padding)
        for n, after, k, s, p, own in zip(size, pooled, kernel, stride, padding, own_padding, strict=True):
            # what the convolution pads are zeros, so the windows beyond the edges must see nothing of the image
            if own and (k > s + p or after * s - p < n):
                raise ValueError(
                    f"'{name}': a convolution with padding behind pools of {k} every {s} of {n} pixels is not a plain "
                    "convolution; let the windows cover the image without overlap"
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
    """The kernel [K, C, H, W] of a linear layer [K, F] behind linear operations: their transpose, applied to it."""
    origin = torch.zeros(len(weight), *shape, dtype=weight.dtype, device=weight.device)
    transpose = torch.func.vjp(lambda x: before(x).flatten(1), origin)[1]
    return transpose(weight.detach())[0]


def _copy(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().clone()
