"""Work out the shapes of all outputs of a network from its layers, without running it.

A network from a file is not trusted. Layers that do not fit together, or need too much memory for the size of the file,
are refused here.
"""

from math import prod

from torch import nn

from rheobase import limits
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.pairs import pair, positions

Shape = tuple[int, ...]
COPIES = 2  # of an output: one in the making, one that is kept
FLOAT, DOUBLE = 4, 8  # bytes


def outputs(network: Network, input_shape: Shape, timesteps: int, size: int) -> int:
    """Return the number of logits of `network`, from a file of `size` bytes, for an image [C, H, W] of this shape.

    Raise a ValueError if its layers do not fit together, or need too much memory for a file of this size.
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
    """Return the shape of every node's output for one image [C, H, W], and of the input."""
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
    """Return the shape of the output, or None if the input does not fit."""
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
        size = positions(shape[1:], node.kernel_size, node.stride, pair(node.padding), node.dilation)
        return (node.out_channels, *size) if shape[0] == node.in_channels else None
    assert isinstance(node, nn.AvgPool2d)
    return (shape[0], *positions(shape[1:], pair(node.kernel_size), pair(node.stride), pair(node.padding)))


def _windows(node: nn.Module, after: Shape) -> int:
    """Return the number of values in all windows of a convolution. In double precision, torch copies every window."""
    if not isinstance(node, nn.Conv2d):
        return 0
    return node.in_channels * prod(node.kernel_size) * prod(after[1:])
