"""Calibration for a given number of steps, layer by layer.

Half a threshold is added, so that the number of spikes is rounded to the nearest instead of down (Deng & Gu 2021,
Optimal conversion of conventional artificial neural networks to spiking neural networks). They spread it over the
steps; here neurons start with it, unless they have to start at 0, as those that are trained. The threshold is the one
with which rounded activations differ least from those of the ReLU network, and a bias gives every channel the mean
activation that it lacks (Li et al. 2021, A free lunch from ANN: towards efficient, accurate spiking neural networks
calibration; its light version).
"""

import torch
from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, channel_means
from rheobase.deploy.network import Network

VALUES = 2**18  # of a layer, to choose its threshold by
CANDIDATES = 100  # thresholds, in equal steps up to the largest activation


def calibrated(graph: Network, images: Tensor, timesteps: int, *, spread: bool = False) -> Choice:
    """For this number of `timesteps` alone; with `spread`, for neurons that start at 0."""
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
    """The one for which threshold / timesteps * (0 to timesteps spikes) comes closest, in mean squares."""
    largest = activations.max().item()
    if largest == 0:
        return 1.0  # a silent layer: any threshold will do
    candidates = largest * torch.arange(1, CANDIDATES + 1, dtype=torch.float64) / CANDIDATES
    errors = []
    for threshold in candidates.tolist():
        spikes = (activations * (timesteps / threshold) + 0.5).floor().clamp(max=timesteps)
        errors.append((spikes * (threshold / timesteps) - activations).square().mean())
    return candidates[int(torch.stack(errors).argmin())].item()


def _some(activations: list[Tensor]) -> Tensor:
    """Values from everywhere, always the same ones."""
    values = torch.cat([x.flatten() for x in activations])
    if len(values) <= VALUES:
        return values
    chosen = torch.randint(len(values), (VALUES,), generator=torch.Generator().manual_seed(0))
    return values[chosen.to(values.device)]
