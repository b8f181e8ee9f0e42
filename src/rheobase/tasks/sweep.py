"""Accuracy, firing rate and energy of a network against its number of timesteps."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rheobase.analysis.fanout import fan_out
from rheobase.convert.sweep import doubling, sweep
from rheobase.data.feed import Feed
from rheobase.deploy.network import Network
from rheobase.tasks.open import about, input_dtype, open_network, open_run
from rheobase.train import choose_device
from rheobase.train.runs import Run, open_data
from rheobase.train.switches import cudnn


@dataclass(frozen=True)
class Measured:
    """What a network does within so many steps, on average over the images."""

    timesteps: int
    accuracy: float
    firing_rate: float
    """Spikes per neuron and step, over all neurons."""
    additions: float
    """Of synapses that spikes reach, for one image; see `analysis.fanout`."""
    multiplications: float
    """Of synapses that pixels or averages reach."""
    joule: float


def sweep_network(
    source: Path, *, data: Path | None = None, timesteps: int | None = None, device: str = "auto"
) -> list[Measured]:
    """The folded network of a run, or the network in a file, at 1, 2, 4, ... and `timesteps` steps."""
    found = open_run(source)
    network = open_network(found)
    if not isinstance(network, Network):
        raise ValueError(f"{source} is a file that does not show its spikes; give the network it was exported from")
    stated, where, dtype = about(network, source), choose_device(device), input_dtype(network)
    if stated.data.timesteps:
        raise ValueError(f"{source} reads recordings, which have their own steps; leave --sweep out")
    recipe = replace(stated.recipe, precision="fp32")
    if isinstance(found, Run):
        dataset = found.open_data(data)
    else:
        dataset = open_data(recipe, stated.data, data, source)
    feed = Feed(dataset, recipe, where, dtype)
    steps = doubling(timesteps or recipe.timesteps)
    return measured(network.to(where), feed.testing(), steps, stated.data.shape)


def measured(
    network: Network, batches: Iterable[tuple[Tensor, Tensor]], timesteps: Sequence[int], shape: tuple[int, ...]
) -> list[Measured]:
    """At each of these numbers of steps, for images of `shape` [C, H, W] and their labels."""
    with torch.device("meta"):
        reach = fan_out(copy.deepcopy(network).to("meta"), shape)
    neurons = sum(reach.neurons.values())
    rows = []
    with cudnn(benchmark=True):
        points = sweep(network, batches, timesteps)
    for point in points:
        t, rates = point.timesteps, point.rates
        rows.append(
            Measured(
                timesteps=t,
                accuracy=point.accuracy,
                firing_rate=sum(rates[name] * count for name, count in reach.neurons.items()) / neurons,
                additions=t * sum(rates[name] * count for name, count in reach.additions.items()),
                multiplications=t * reach.multiplications,
                joule=reach.joule(rates, t),
            )
        )
    return rows
