"""Convert networks that were trained for conversion (Bu et al. 2022, Optimal ANN-SNN conversion for high-accuracy and
ultra-low-latency spiking neural networks). Their activations are clipped and rounded like spike counts, at learnt
thresholds.
"""

from torch import Tensor

from rheobase.convert.graph import Choice, Neurons, layers_of
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF


def qcfs(graph: Network, images: Tensor | None, timesteps: int) -> Choice:
    """Use the learnt thresholds, and start at half of them. This needs no `images`."""
    choice = Choice()
    for name in layers_of(graph):
        layer = graph.nodes[name]
        assert isinstance(layer, LIF)
        threshold = layer.v_th[0].item()
        choice.neurons[name] = Neurons(threshold, initial=threshold / 2)
    return choice
