"""What a network makes of images of one size, worked out from its layers alone: nothing is run.

A network from a file is not trusted: layers that do not fit each other are named here, and so is one that would take
more memory than its file may.
"""

from math import prod

from torch import nn

from rheobase import limits
from rheobase.deploy.network import INPUT, LIF, Network, Scale
from rheobase.deploy.pairs import pair

Shape = tuple[int, ...]
COPIES = 2  # of an output: as it is made and as it is kept
FLOAT, DOUBLE = 4, 8  # bytes


def outputs(network: Network, input_shape: Shape, timesteps: int, size: int) -> int:
    """How many logits `network`, from a file of `size` bytes, has for an image [C, H, W] of this shape.

    A ValueError says why it cannot be run: its layers do not fit, or take more memory than the file may.
    """
    found = shapes(network, input_shape)
    width = max([FLOAT, *(p.element_size() for p in network.parameters())])
    last_use = {source: name for name, sources in network.inputs.items() for source in sources}
    kept, most = {INPUT: prod(input_shape)}, 0
    for name, node in network.nodes.items():
        kept[name] = prod(found[name])
        windows = _windows(node, found[name]) if width == DOUBLE else 0
        most = max(most, COPIES * sum(kept.values()) + windows)
        kept = {other: values for other, values in kept.items() if last_use.get(other, "") != name}
    limits.check(timesteps * width * most, size, f"{timesteps} timesteps of its layers")
    return kept[name]


def shapes(network: Network, input_shape: Shape) -> dict[str, Shape]:
    """The shape of every node's output for one image [C, H, W], and of the input itself."""
    found = {INPUT: input_shape}
    for name, node in network.nodes.items():
        sources = {found[source] for source in network.inputs[name]}
        if len(sources) > 1:
            told = ", ".join(str(list(shape)) for shape in sorted(sources))
            raise ValueError(f"node '{name}': its inputs differ in shape: {told}")
        (shape,) = sources
        after = _after(node, shape)
        if after is None or min(after) < 1:
            raise ValueError(f"node '{name}': a {type(node).__name__} cannot read an input of the shape {list(shape)}")
        found[name] = after
    return found


def _after(node: nn.Module, shape: Shape) -> Shape | None:
    """The shape of the output; None where the input does not fit."""
    if isinstance(node, nn.Linear):
        return (node.out_features,) if shape == (node.in_features,) else None
    if isinstance(node, nn.Flatten):
        return (prod(shape),)
    if isinstance(node, Scale):
        return shape if shape[0] == len(node.weight) else None
    if isinstance(node, LIF):
        return shape if shape[0] == len(node.v_th) else None
    if len(shape) != 3:
        return None
    if isinstance(node, nn.AdaptiveAvgPool2d):
        return (shape[0], 1, 1)
    if isinstance(node, nn.Conv2d):
        reach = [d * (k - 1) + 1 for d, k in zip(node.dilation, node.kernel_size, strict=True)]
        return (node.out_channels, *_slid(shape, reach, node)) if shape[0] == node.in_channels else None
    assert isinstance(node, nn.AvgPool2d)
    return (shape[0], *_slid(shape, pair(node.kernel_size), node))


def _windows(node: nn.Module, after: Shape) -> int:
    """Values of the windows that a convolution slides over: in double precision torch writes all of them out."""
    if not isinstance(node, nn.Conv2d):
        return 0
    return node.in_channels * prod(node.kernel_size) * prod(after[1:])


def _slid(shape: Shape, kernel: tuple[int, ...] | list[int], node: nn.Conv2d | nn.AvgPool2d) -> Shape:
    """Height and width after sliding a window."""
    stride, padding = pair(node.stride), pair(node.padding)
    return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True))
