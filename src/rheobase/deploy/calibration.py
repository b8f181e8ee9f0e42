"""Run the integer version of a network layer by layer while it is being made."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from rheobase.deploy.lower import node_shapes
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF
from rheobase.deploy.pairs import pair, positions

MEMORY = 2**28  # bytes for the spikes of the widest layer, which take one each
BATCH = 16  # images that run at once
PLACES, VALUES = 8192, 2**25  # at most so many places in a layer's output are looked at, and values of their inputs

Places = tuple[Tensor, ...]  # step, image, row and column


class Calibration:
    """`exact` is the network of convolutions and neurons; `images` [T, N, C, H, W] are integers.

    T is 1 where all steps see the same.
    """

    def __init__(self, exact: Network, images: Tensor, timesteps: int) -> None:
        self.inputs_of, self.timesteps = exact.inputs, timesteps
        self.until: dict[str, str] = {}  # whose spikes are needed up to which layer
        for name, node in exact.nodes.items():
            for synapse in exact.inputs[name] if isinstance(node, LIF) else (name,):
                self.until |= dict.fromkeys(exact.inputs[synapse], name)
        widest = max(prod(shape) for shape in node_shapes(exact, tuple(images.shape[2:])).values())
        few = min(images.shape[1], max(1, MEMORY // (widest * timesteps)))
        from_everywhere = (torch.arange(few) * images.shape[1] // few).to(images.device)
        self.sent: dict[str, Tensor] = {INPUT: images[:, from_everywhere]}

    def inputs(self, synapses: Mapping[str, nn.Conv2d]) -> dict[str, Tensor]:
        """What every synapse of one layer reads, [P, C * kernel], at the same places of the layer."""
        sent = {name: self._sent_to(name) for name in synapses}
        name, conv = next(iter(synapses.items()))
        steps = max(len(x) for x in sent.values())
        most = min(PLACES, VALUES // max(conv.weight[0].numel() for conv in synapses.values()))
        first = sent[name]
        size = positions(first.shape[3:], conv.kernel_size, conv.stride, pair(conv.padding), conv.dilation)
        where = _places((steps, first.shape[1], *size), max(1, most))
        where = tuple(index.to(first.device) for index in where)
        return {name: _read(sent[name], conv, where) for name, conv in synapses.items()}

    def fire(self, name: str, nodes: Mapping[str, nn.Module]) -> None:
        """Let that layer of neurons fire; `nodes` has its integer version."""
        self.sent[name] = self._spikes(name, nodes)
        for source in [source for source, last in self.until.items() if last == name]:
            del self.sent[source]

    def _sent_to(self, synapse: str) -> Tensor:
        """The sum of what its sources send."""
        first, *others = (self.sent[source] for source in self.inputs_of[synapse])
        return sum((x.to(torch.uint8) for x in others), start=first.to(torch.uint8)) if others else first

    def _spikes(self, name: str, nodes: Mapping[str, nn.Module]) -> Tensor:
        synapses = {synapse: self._sent_to(synapse) for synapse in self.inputs_of[name]}
        parts = []
        for batch in zip(*(x.split(BATCH, 1) for x in synapses.values()), strict=True):
            currents = []
            for synapse, x in zip(synapses, batch, strict=True):
                conv = nodes[synapse]
                assert isinstance(conv, nn.Conv2d)
                currents.append(conv(x.to(conv.weight.dtype).flatten(0, 1)).unflatten(0, x.shape[:2]))
            parts.append(nodes[name](currents, self.timesteps) > 0)
        return torch.cat(parts, 1)


def _places(shape: tuple[int, ...], most: int) -> Places:
    """Return all positions of an output [T, N, H, W], or at most `most` of them, drawn with a fixed seed."""
    total = prod(shape)
    chosen = torch.arange(total)
    if total > most:
        chosen = torch.randint(total, (most,), generator=torch.Generator().manual_seed(0))
    return torch.unravel_index(chosen, shape)


def _read(x: Tensor, conv: nn.Conv2d, where: Places) -> Tensor:
    """Return the part of x [T, N, C, H, W] that the convolution reads for each of P outputs: [P, C * kernel]."""
    assert not isinstance(conv.padding, str)
    step, image, row, column = (index[:, None, None] for index in where)
    (top, left), (height, width) = conv.padding, conv.kernel_size
    padded = nn.functional.pad(x, (left, left, top, top))
    rows = row * conv.stride[0] + torch.arange(height, device=x.device)[:, None] * conv.dilation[0]
    columns = column * conv.stride[1] + torch.arange(width, device=x.device) * conv.dilation[1]
    # [P, kernel, C]; if all timesteps share one image, x holds it once
    read = padded[step % len(x), image, :, rows, columns].permute(0, 3, 1, 2).flatten(1)
    return read if read.is_floating_point() else read.float()
