"""Calibrate thresholds and biases layer by layer, for a given number of timesteps.

Half a threshold is added, so that the number of spikes is rounded to the nearest instead of down (Deng & Gu 2021,
Optimal conversion of conventional artificial neural networks to spiking neural networks). Deng & Gu spread it over the
timesteps. Here, neurons start with it, unless they must start at 0, like neurons that will be trained.

The threshold of a channel minimises the difference between its rounded activations and those of the ReLU network. A
bias adds the mean activation that the channel lacks (the light version of Li et al. 2021, A free lunch from ANN:
towards efficient, accurate spiking neural networks calibration).
"""

import torch
from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, channel_means
from rheobase.deploy.network import Network

VALUES = 4096  # activations of a channel that its threshold is chosen by
CANDIDATES = 100  # thresholds to choose from, equally spaced up to the largest activation
ROUNDS = 4  # corrections of the bias: one corrects a channel that is partly silent only in part


def calibrated(graph: Network, images: Tensor, timesteps: int, *, spread: bool = False) -> Choice:
    """Choose thresholds and biases for this number of `timesteps` only. With `spread`, neurons start at 0."""
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
    """Return the threshold of each channel whose levels, threshold * spikes / timesteps, have the least squared error.

    `activations` are [C, values]. For a silent channel, any threshold will do.
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
    """Return all values [C, n] of activations [1, N, C, ...], or some of them, drawn with a fixed seed."""
    values = torch.cat([x[0].transpose(0, 1).flatten(1) for x in activations], 1)
    if values.shape[1] <= VALUES:
        return values
    chosen = torch.randint(values.shape[1], (VALUES,), generator=torch.Generator().manual_seed(0))
    return values[:, chosen.to(values.device)]
