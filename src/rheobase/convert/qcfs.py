"""Networks that were trained for it (Bu et al. 2022, Optimal ANN-SNN conversion for high-accuracy and ultra-low-latency
spiking neural networks): their activations are cut and rounded as spikes will do it, at thresholds that were learnt.
"""

from torch import Tensor

from rheobase.convert.graph import Choice, Neurons, layers_of
from rheobase.deploy.network import LIF, Network


def qcfs(graph: Network, images: Tensor | None, timesteps: int) -> Choice:
    """The learnt thresholds, and half of them to start with; it needs no `images`."""
    choice = Choice()
    for name in layers_of(graph):
        layer = graph.nodes[name]
        assert isinstance(layer, LIF)
        threshold = layer.v_th[0].item()
        choice.neurons[name] = Neurons(threshold, initial=threshold / 2)
    return choice
