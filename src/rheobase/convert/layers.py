"""Send calibration images through a network layer by layer: all images through one layer, then through the next.

So a method can choose the neurons of a layer by the actual output of the neurons that it has chosen before.

Shapes: T timesteps (1 if all are equal), N images.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from rheobase.convert.graph import Neurons, Synapse, layers_of
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, per_channel

TOGETHER = 2048  # images times timesteps that go through a layer at once


class Layers:
    """Images [N, C, H, W] in a graph from `relu_graph`. Outputs of layers are kept as long as they are needed."""

    def __init__(self, graph: Network, images: Tensor, timesteps: int) -> None:
        self.graph, self.timesteps, self.images = graph, timesteps, len(images)
        self.names = layers_of(graph)
        self._dtype = next(graph.parameters()).dtype
        self.shifts: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {INPUT: images[None]}
        self._heights: dict[str, float | Tensor] = {}
        few = max(1, TOGETHER // timesteps)
        self._parts = [slice(start, start + few) for start in range(0, len(images), few)]
        last = {source: name for name in self.names for source in self._senders(name)}
        self._done_with = {name: [source for source, own in last.items() if own == name] for name in self.names}

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the layers. After each, drop the outputs that no later layer needs."""
        for name in self.names:
            yield name
            for source in self._done_with[name]:
                del self._sent[source]

    def currents(self, name: str) -> Iterator[Tensor]:
        """Return the input currents of a layer: [T, n, C, ...] for n images at a time."""
        return (self._sum(self.graph.inputs[name], part) for part in self._parts)

    def send(self, name: str, outputs: Iterable[Tensor]) -> None:
        """Set the output of a layer: [T, n, C, ...] for n images at a time."""
        self._sent[name] = torch.cat(list(outputs), 1)

    def fire(self, name: str, neurons: Neurons, reset: str) -> Tensor:
        """Set the output of a layer to the spikes of these neurons. Return the mean activation [C] they represent."""
        like = self.graph.nodes[name]
        assert isinstance(like, LIF)
        lif = neurons.layer(like, reset)
        spikes = [lif([current], self.timesteps) > 0 for current in self.currents(name)]
        self._heights[name] = neurons.threshold
        self.send(name, spikes)
        return neurons.threshold * channel_means(spikes)

    def own_synapse(self, name: str) -> str | None:
        """Return a synapse that no earlier layer reads, so that it can be changed, or None if there is none."""
        before = self.names[: self.names.index(name)]
        read = {source for layer in before for source in self.graph.inputs[layer]}
        own = [s for s in self.graph.inputs[name] if s not in read and isinstance(self.graph.nodes[s], Synapse)]
        return own[0] if own else None

    def _sum(self, sources: Iterable[str], part: slice) -> Tensor:
        first, *others = (self._value(source, part) for source in sources)
        return sum(others, start=first)

    def _value(self, name: str, part: slice) -> Tensor:
        if name in self._sent:
            x = self._sent[name][:, part]
            return x if name not in self._heights else x.to(self._dtype) * _along(self._heights[name], x)
        x = self._sum(self.graph.inputs[name], part)
        y = self.graph.nodes[name](x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return y + per_channel(self.shifts[name], y[0]) if name in self.shifts else y

    def _senders(self, name: str) -> set[str]:
        """Return the layers (or the input) whose outputs reach this layer through synapses and pools."""
        found: set[str] = set()
        for source in self.graph.inputs[name]:
            leads = source == INPUT or isinstance(self.graph.nodes[source], LIF)
            found |= {source} if leads else self._senders(source)
        return found


def _along(height: float | Tensor, x: Tensor) -> float | Tensor:
    """Return a number, or one per channel, in a shape that broadcasts with x [T, n, C, ...]."""
    return per_channel(height, x[0]) if isinstance(height, Tensor) else height


def channel_means(outputs: Iterable[Tensor]) -> Tensor:
    """Return the mean [C] of all outputs [T, n, C, ...]."""
    sums, count = [], 0
    for x in outputs:
        sums.append(x.sum([d for d in range(x.ndim) if d != 2], dtype=torch.float64))
        count += x[:, :, 0].numel()
    return torch.stack(sums).sum(0) / count


def quantile(outputs: Iterable[Tensor], percent: float, images: int) -> float:
    """Return the value that `percent` of all values do not exceed. Outputs [T, n, ...] hold n of all `images` each.

    If it is not above 0, return the largest value. If that is not above 0 either, the layer is silent, any threshold
    will do, and the result is 1.
    """
    if not 0 < percent <= 100:
        raise ValueError(f"expected a percentile above 0 and up to 100, got {percent}")
    top = above = None
    for x in outputs:
        if top is None or above is None:
            total = x.numel() // x.shape[1] * images
            above, top = total - min(total, max(1, round(percent / 100 * total))) + 1, x.new_empty(0)
        values = torch.cat([top, x.flatten()])
        top = values.topk(min(above, len(values))).values
    assert top is not None
    return next((value for value in (top[-1].item(), top[0].item()) if value > 0), 1.0)
