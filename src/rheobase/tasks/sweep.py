"""Measure accuracy, firing rate and energy of a network against its number of timesteps."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rheobase.analysis.fanout import fan_out
from rheobase.data import DataInfo
from rheobase.data.feed import Feed
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.quantize import Tell, silent
from rheobase.recipes import Recipe
from rheobase.tasks.open import about, input_dtype, open_dataset, open_run, open_with_spikes, ready
from rheobase.train import choose_device
from rheobase.train.step import autocast
from rheobase.train.sweep import doubling, sweep
from rheobase.train.switches import cudnn

LARGEST = torch.finfo(torch.float16).max
SMALLEST = 2.0**-10  # threshold; the smallest currents of float16 are at least 2**14 times finer than that


@dataclass(frozen=True)
class Measured:
    """The results of a network within a number of timesteps, averaged over the images."""

    timesteps: int
    accuracy: float
    firing_rate: float
    """Spikes per neuron and timestep, over all neurons."""
    additions: float
    """Additions for one image, in synapses with spikes as input; see `analysis.fanout`."""
    multiplications: float
    """Multiplications for one image, in synapses with pixels or averages as input."""
    joule: float
    """Energy of one inference."""


def sweep_network(
    source: Path,
    *,
    data: Path | None = None,
    timesteps: int | None = None,
    device: str | torch.device = "auto",
    tell: Tell = silent,
) -> list[Measured]:
    """Measure the folded network of a run, or the network in a file, at 1, 2, 4, ... and `timesteps` timesteps.

    `tell` is called after each batch, with the numbers of images that are done and of all.
    """
    found = open_run(source)
    network = open_with_spikes(found, source)
    stated, where = about(network, source), choose_device(device)
    if stated.data.timesteps:
        raise ValueError(f"{source} reads recordings, which have their own timesteps; leave out --sweep")
    dataset = open_dataset(found, stated, data)
    batches = Feed(dataset, stated.recipe, where, input_dtype(network), tell=tell).testing()
    steps = doubling(timesteps or stated.recipe.timesteps)
    return measured(network, batches, steps, stated.recipe, dataset.info, where)


def measured(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    timesteps: Sequence[int],
    recipe: Recipe,
    info: DataInfo,
    device: torch.device,
) -> list[Measured]:
    """Measure a network at each number of timesteps. The batches are on the device, and `info` describes the images."""
    with torch.device("meta"):
        reach = fan_out(copy.deepcopy(network).to("meta"), info.shape)
    neurons = sum(reach.neurons.values())
    dtype = input_dtype(network)
    half = device.type == "cuda" and dtype == torch.float32 and not network.integer and half_will_do(network, info)
    recipe = replace(recipe, precision="fp16" if half else "fp32")
    own, rows = copy.deepcopy(network), []
    ready(own, recipe, device, dtype)
    with cudnn(benchmark=True), autocast(recipe, device):
        points = sweep(own, batches, timesteps)
    for point in points:
        t, rates = point.timesteps, point.rates
        additions, multiplications = reach.operations(rates, t)
        rows.append(
            Measured(
                timesteps=t,
                accuracy=point.accuracy,
                firing_rate=sum(rates[name] * count for name, count in reach.neurons.items()) / max(1, neurons),
                additions=additions,
                multiplications=multiplications,
                joule=reach.joule(rates, t),
            )
        )
    return rows


def half_will_do(network: Network, info: DataInfo) -> bool:
    """Return whether float16, which is twice as fast, is as exact for the synapses as TF32.

    Spikes are exact in both, and weights have 11 bits in both. But float16 must also hold every current that can occur,
    and must be fine enough compared with the thresholds. Neurons integrate in float32 either way.
    """
    pixels = [abs(pixel - mean) / std for pixel in (0, 255) for mean, std in zip(info.mean, info.std, strict=True)]
    bounds = {INPUT: max(pixels)}
    for name, node in network.nodes.items():
        bounds[name] = sum(bounds[source] for source in network.inputs[name])
        if isinstance(node, LIF):
            if node.v_th.min() < SMALLEST:
                return False
            bounds[name] = 1.0
        elif isinstance(node, nn.Conv2d | nn.Linear | Scale):
            weights = node.weight.double().abs().reshape(len(node.weight), -1).sum(1)
            bounds[name] = bounds[name] * weights.max().item()
            bounds[name] += 0.0 if node.bias is None else node.bias.double().abs().max().item()
    return max(bounds.values()) < LARGEST
