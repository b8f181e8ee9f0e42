"""Residual membrane potentials (Han et al. 2020, RMP-SNN: residual membrane potential neuron for enabling deeper
high-accuracy and low-latency spiking neural network). With a soft reset, the potential above the threshold is kept.
Thresholds are balanced on the spikes of such neurons.
"""

from torch import Tensor

from rheobase.convert.graph import Choice
from rheobase.convert.spike_norm import balanced
from rheobase.deploy.network import Network


def rmp(graph: Network, images: Tensor, timesteps: int, *, percentile: float = 99.9) -> Choice:
    return balanced(graph, images, timesteps, percentile, reset="soft")
