"""Energy from recorded firing rates: what the spikes of each layer reach, from shapes alone, without weights or images.

It is what `operations` would count if the spikes of a layer were spread evenly over its neurons, and no pixel or
average were exactly 0 or 1: layers that those feed multiply, at every step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.analysis.operations import ADDITION_PICOJOULE, MAC_PICOJOULE
from rheobase.deploy.network import INPUT, LIF, Network, Scale


@dataclass(frozen=True)
class FanOut:
    """Of one image at one timestep."""

    neurons: dict[str, int]
    """Of every layer of neurons."""
    additions: dict[str, float]
    """For every layer of neurons, if all of them fired."""
    multiplications: float

    def joule(self, rates: Mapping[str, float], timesteps: int) -> float:
        """Of one inference with these spikes per neuron and step, for every layer of neurons."""
        additions = sum(reached * rates[layer] for layer, reached in self.additions.items())
        return timesteps * (additions * ADDITION_PICOJOULE + self.multiplications * MAC_PICOJOULE) * 1e-12


def fan_out(network: Network, shape: tuple[int, ...]) -> FanOut:
    """Of a network on the meta device, for images of `shape` [C, H, W]."""
    values = {INPUT: torch.empty(1, *shape, device="meta")}
    feeders: dict[str, list[str | None]] = {INPUT: [None]}  # the neurons whose spikes arrive; None is anything else
    neurons: dict[str, int] = {}
    additions: dict[str, float] = {}
    multiplications = 0.0
    for name, node in network.nodes.items():
        sources = network.inputs[name]
        x, arriving = values[sources[0]], [feeder for source in sources for feeder in feeders[source]]
        y = values[name] = x if isinstance(node, LIF) else node(x)
        if isinstance(node, nn.Conv2d | nn.Linear | Scale):
            for feeder in arriving:
                if feeder is None:
                    multiplications += _connections(node, x, y)
                else:
                    additions[feeder] += _connections(node, x, y)
            feeders[name] = [None]
        elif isinstance(node, LIF):
            feeders[name], neurons[name], additions[name] = [name], y.numel(), 0.0
        else:
            averages = isinstance(node, nn.AvgPool2d | nn.AdaptiveAvgPool2d)
            feeders[name] = [None] if averages else arriving
    return FanOut(neurons, additions, multiplications)


def _connections(node: nn.Conv2d | nn.Linear | Scale, x: Tensor, y: Tensor) -> float:
    """How many weights meet an input, all positions counted; those over the padding of a convolution meet none."""
    if not isinstance(node, nn.Conv2d):
        return node.weight.numel() * y[0, 0].numel()
    assert not isinstance(node.padding, str)
    met = 1
    for axis in (0, 1):
        starts = (i * node.stride[axis] - node.padding[axis] for i in range(y.shape[2 + axis]))
        taps = range(0, node.kernel_size[axis] * node.dilation[axis], node.dilation[axis])
        met *= sum(0 <= start + tap < x.shape[2 + axis] for start in starts for tap in taps)
    return node.in_channels // node.groups * node.out_channels * met
