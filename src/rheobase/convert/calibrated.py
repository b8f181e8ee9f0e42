"""Calibration for a given number of steps, layer by layer.

Half a threshold is added, so that the number of spikes is rounded to the nearest instead of down (Deng & Gu 2021,
Optimal conversion of conventional artificial neural networks to spiking neural networks). They spread it over the
steps; here neurons start with it, unless they have to start at 0, as those that are trained. The threshold of a channel
is the one with which its rounded activations differ least from those of the ReLU network, and a bias gives it the mean
activation that it lacks (Li et al. 2021, A free lunch from ANN: towards efficient, accurate spiking neural networks
calibration; its light version).
"""

import torch
from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, channel_means
from rheobase.deploy.network import Network

VALUES = 4096  # of a channel, to choose its threshold by
CANDIDATES = 100  # thresholds, in equal steps up to the largest activation
ROUNDS = 4  # of the bias: a channel that is partly silent makes up for a part of what it lacks only


def calibrated(graph: Network, images: Tensor, timesteps: int, *, spread: bool = False) -> Choice:
    """For this number of `timesteps` alone; with `spread`, for neurons that start at 0."""
    relu, layers, choice = Layers(graph, images, 1), Layers(graph, images, timesteps), Choice()
    for name, _ in zip(layers, relu, strict=True):
        activations = [current.relu() for current in relu.currents(name)]
        threshold = best_thresholds(_some(activations), timesteps)
        relu.send(name, activations)
        wanted, synapse = channel_means(activations), layers.own_synapse(name)
        at_rest = spread and synapse is not None
        choice.neurons[name] = neurons = Neurons(threshold, initial=0.0 if at_rest else threshold / 2)
        if synapse is not None:
            shift = threshold.double() / 2 / timesteps if at_rest else torch.zeros_like(wanted)
            for _ in range(ROUNDS):
                choice.shifts[synapse] = layers.shifts[synapse] = shift.to(threshold.dtype)
                shift = shift + wanted - layers.fire(name, neurons, choice.reset)
            choice.shifts[synapse] = layers.shifts[synapse] = shift.to(threshold.dtype)
        layers.fire(name, neurons, choice.reset)
    return choice


def best_thresholds(activations: Tensor, timesteps: int) -> Tensor:
    """For each channel of [C, values], where threshold / timesteps * (0 to timesteps spikes) comes closest.

    That is the least mean square. For a silent channel, any threshold will do.
    """
    largest = activations.amax(1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    best, least = largest.clone(), torch.full_like(largest, torch.inf)
    for i in range(1, CANDIDATES + 1):
        threshold = largest * (i / CANDIDATES)
        spikes = (activations * (timesteps / threshold) + 0.5).floor().clamp(max=timesteps)
        error = (spikes * (threshold / timesteps) - activations).square().mean(1, keepdim=True)
        best, least = torch.where(error < least, threshold, best), torch.minimum(error, least)
    return best[:, 0]


def _some(activations: list[Tensor]) -> Tensor:
    """Values [C, n] of [1, N, C, ...] from everywhere, always the same ones."""
    values = torch.cat([x[0].transpose(0, 1).flatten(1) for x in activations], 1)
    if values.shape[1] <= VALUES:
        return values
    chosen = torch.randint(values.shape[1], (VALUES,), generator=torch.Generator().manual_seed(0))
    return values[:, chosen.to(values.device)]
