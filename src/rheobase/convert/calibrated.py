"""Calibrate thresholds and biases layer by layer, for a given number of timesteps.

Half a threshold is added, so that the number of spikes is rounded to the nearest instead of down (Deng & Gu 2021,
Optimal conversion of conventional artificial neural networks to spiking neural networks). Deng & Gu spread it over the
timesteps. Here, neurons start with it, unless they must start at 0, like neurons that will be trained.

The threshold minimises the difference between rounded activations and those of the ReLU network. A bias adds the mean
activation that each channel lacks (the light version of Li et al. 2021, A free lunch from ANN: towards efficient,
accurate spiking neural networks calibration).
"""

import torch
from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, channel_means
from rheobase.deploy.network import Network

VALUES = 2**18  # activations of a layer that its threshold is chosen by
CANDIDATES = 100  # thresholds to choose from, equally spaced up to the largest activation


def calibrated(graph: Network, images: Tensor, timesteps: int, *, spread: bool = False) -> Choice:
    """Choose thresholds and biases for this number of `timesteps` only. With `spread`, neurons start at 0."""
    relu, layers, choice = Layers(graph, images, 1), Layers(graph, images, timesteps), Choice()
    for name, _ in zip(layers, relu, strict=True):
        activations = [current.relu() for current in relu.currents(name)]
        threshold = best_threshold(_some(activations), timesteps)
        relu.send(name, activations)
        wanted, synapse = channel_means(activations), layers.own_synapse(name)
        at_rest = spread and synapse is not None
        choice.neurons[name] = neurons = Neurons(threshold, initial=0.0 if at_rest else threshold / 2)
        if synapse is not None:
            shift = torch.full_like(wanted, threshold / 2 / timesteps if at_rest else 0.0)
            layers.shifts[synapse] = shift.to(activations[0].dtype)
            shift += wanted - layers.fire(name, neurons, choice.reset)
            choice.shifts[synapse] = layers.shifts[synapse] = shift.to(activations[0].dtype)
        layers.fire(name, neurons, choice.reset)
    return choice


def best_threshold(activations: Tensor, timesteps: int) -> float:
    """Return the threshold whose levels, threshold * spikes / timesteps, have the least mean squared error."""
    largest = activations.max().item()
    if largest == 0:
        return 1.0  # for a silent layer, any threshold will do
    candidates = largest * torch.arange(1, CANDIDATES + 1, dtype=torch.float64) / CANDIDATES
    errors = []
    for threshold in candidates.tolist():
        spikes = (activations * (timesteps / threshold) + 0.5).floor().clamp(max=timesteps)
        errors.append((spikes * (threshold / timesteps) - activations).square().mean())
    return candidates[int(torch.stack(errors).argmin())].item()


def _some(activations: list[Tensor]) -> Tensor:
    """Return all values, or some of them, drawn with a fixed seed."""
    values = torch.cat([x.flatten() for x in activations])
    if len(values) <= VALUES:
        return values
    chosen = torch.randint(len(values), (VALUES,), generator=torch.Generator().manual_seed(0))
    return values[chosen.to(values.device)]
