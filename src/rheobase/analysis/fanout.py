"""Energy from recorded firing rates and layer shapes, without weights or images.

The result is what `operations` would count if the spikes of a layer were spread evenly over its neurons, and no pixel
or average were exactly 0 or 1. Layers that pixels or averages feed multiply at every timestep. For recordings, it needs
to be known how much of the input is 0 or 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.analysis.operations import ADDITION_PICOJOULE, MAC_PICOJOULE
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale


@dataclass(frozen=True)
class FanOut:
    """Connections of every layer of neurons, for one image at one timestep."""

    neurons: dict[str, int]
    """The number of neurons in every layer."""
    additions: dict[str, float]
    """The additions that every layer causes if all its neurons fire."""
    multiplications: float
    """If no value of the input and no average is 0 or 1."""
    encoding: float
    """The part of these that the input causes."""

    def operations(
        self, rates: Mapping[str, float], timesteps: int, inputs: Mapping[str, float] | None = None
    ) -> tuple[float, float]:
        """Return the additions and multiplications of one inference with these spikes per neuron and timestep.

        `inputs` has the fractions of the input that are 1 (`one`) and neither 0 nor 1 (`other`); None: all are `other`.
        """
        inputs = inputs or {"one": 0.0, "other": 1.0}
        additions = sum(reached * rates[layer] for layer, reached in self.additions.items())
        additions += self.encoding * inputs["one"]
        multiplications = self.multiplications - self.encoding * (1 - inputs["other"])
        return timesteps * additions, timesteps * multiplications

    def joule(self, rates: Mapping[str, float], timesteps: int, inputs: Mapping[str, float] | None = None) -> float:
        """Return the energy of these operations."""
        additions, multiplications = self.operations(rates, timesteps, inputs)
        return (additions * ADDITION_PICOJOULE + multiplications * MAC_PICOJOULE) * 1e-12


def fan_out(network: Network, shape: tuple[int, ...]) -> FanOut:
    """Return the fan-out of a network on the meta device, for images of `shape` [C, H, W]."""
    dtype = next(network.parameters()).dtype
    values = {INPUT: torch.empty(1, *shape, device="meta", dtype=dtype)}
    feeders: dict[str, list[str | None]] = {INPUT: [INPUT]}  # layers whose spikes arrive; None is any other input
    neurons: dict[str, int] = {}
    additions: dict[str, float] = {}
    multiplications = encoding = 0.0
    for name, node in network.nodes.items():
        sources = network.inputs[name]
        x, arriving = values[sources[0]], [feeder for source in sources for feeder in feeders[source]]
        y = values[name] = x if isinstance(node, LIF) else node(x)
        if isinstance(node, nn.Conv2d | nn.Linear | Scale):
            for feeder in arriving:
                if feeder is None or feeder == INPUT:
                    multiplications += _connections(node, x, y)
                    encoding += _connections(node, x, y) if feeder == INPUT else 0.0
                else:
                    additions[feeder] += _connections(node, x, y)
            feeders[name] = [None]
        elif isinstance(node, LIF):
            feeders[name], neurons[name], additions[name] = [name], y.numel(), 0.0
        else:
            averages = isinstance(node, nn.AvgPool2d | nn.AdaptiveAvgPool2d)
            feeders[name] = [None] if averages else arriving
    return FanOut(neurons, additions, multiplications, encoding)


def _connections(node: nn.Conv2d | nn.Linear | Scale, x: Tensor, y: Tensor) -> float:
    """Return how many weights meet an input, over all positions. Weights over padding meet none."""
    if not isinstance(node, nn.Conv2d):
        return node.weight.numel() * y[0, 0].numel()
    assert not isinstance(node.padding, str)
    met = 1
    for axis in (0, 1):
        starts = (i * node.stride[axis] - node.padding[axis] for i in range(y.shape[2 + axis]))
        taps = range(0, node.kernel_size[axis] * node.dilation[axis], node.dilation[axis])
        met *= sum(0 <= start + tap < x.shape[2 + axis] for start in starts for tap in taps)
    return node.in_channels // node.groups * node.out_channels * met
