"""Choose thresholds by the incoming spikes (Sengupta et al. 2019, Going deeper in spiking neural networks: VGG and
residual architectures). Layer by layer, the largest current of any neuron at any timestep becomes the threshold.

A spike resets the potential to 0. Images enter directly, while Sengupta et al. turn them into random spikes.
"""

from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, quantile
from rheobase.deploy.network import Network

FEWEST, MOST = 16, 128  # timesteps: with fewer, spikes do not reach the last layers; more give no larger currents


def spike_norm(graph: Network, images: Tensor, timesteps: int, *, percentile: float = 100.0) -> Choice:
    return balanced(graph, images, timesteps, percentile, reset="hard")


def balanced(graph: Network, images: Tensor, timesteps: int, percentile: float, *, reset: str) -> Choice:
    """Choose thresholds at this percentile of the currents that neurons with this reset cause."""
    layers, choice = Layers(graph, images, min(max(timesteps, FEWEST), MOST)), Choice(reset=reset)
    for name in layers:
        choice.neurons[name] = Neurons(quantile(layers.currents(name), percentile, layers.images))
        layers.fire(name, choice.neurons[name], reset)
    return choice
