"""Take the threshold of each layer from the activations of the ReLU network.

Diehl et al. 2015 (Fast-classifying, high-accuracy spiking deep networks through weight and threshold balancing) use the
largest activation and a hard reset: percentile=100, reset="hard". (They use the largest weight if it is larger, so that
no single spike exceeds the threshold. Here, only activations count.) Rueckauer et al. 2017 (Conversion of
continuous-valued deep networks to efficient event-driven networks) use the 99.9th percentile, which is robust to
outliers, and a soft reset. That is the default.
"""

from torch import Tensor

from rheobase.convert.graph import Choice, Neurons
from rheobase.convert.layers import Layers, quantile
from rheobase.deploy.network import Network


def data_norm(
    graph: Network, images: Tensor, timesteps: int, *, percentile: float = 99.9, reset: str = "soft"
) -> Choice:
    """Choose thresholds that do not depend on the number of `timesteps`."""
    layers, choice = Layers(graph, images, 1), Choice(reset=reset)
    for name in layers:
        activations = [current.relu() for current in layers.currents(name)]
        choice.neurons[name] = Neurons(quantile(activations, percentile, layers.images))
        layers.send(name, activations)
    return choice
