"""Thresholds from the activations of the ReLU network, one for each layer.

Diehl et al. 2015 (Fast-classifying, high-accuracy spiking deep networks through weight and threshold balancing) take
the largest one, and neurons that a spike resets to 0: percentile=100, reset="hard". (They take the largest weight where
that is larger, so that no single spike exceeds the threshold; here activations alone count.) Rueckauer et al. 2017
(Conversion of continuous-valued deep networks to efficient event-driven networks) take the 99.9th percentile, which a
few outliers do not move, and a spike lowers the potential by the threshold. That is the default.
"""

from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, quantile
from rheobase.deploy.network import Network


def data_norm(
    graph: Network, images: Tensor, timesteps: int, *, percentile: float = 99.9, reset: str = "soft"
) -> Choice:
    """The same thresholds for any number of `timesteps`."""
    layers, choice = Layers(graph, images, 1), Choice(reset=reset)
    for name in layers:
        activations = [current.relu() for current in layers.currents(name)]
        choice.neurons[name] = Neurons(quantile(activations, percentile, layers.images))
        layers.send(name, activations)
    return choice
