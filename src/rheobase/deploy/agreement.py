"""Measure how far two versions of a network agree: differing spikes per layer, logits, predictions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.deploy.network import Network, node_name
from rheobase.deploy.nodes import LIF
from rheobase.functional import readout
from rheobase.nn import somas, watched


@dataclass(frozen=True)
class Record:
    """The activity of a network: spikes [T, N, F] (bool) of every layer of neurons, and logits [T, N, K]."""

    spikes: Mapping[str, Tensor]
    logits: Tensor

    def cpu(self) -> "Record":
        """Return the same record on the CPU."""
        return Record({name: spikes.cpu() for name, spikes in self.spikes.items()}, self.logits.cpu())


@dataclass(frozen=True)
class Agreement:
    """How far two networks agree."""

    layers: Mapping[str, float]
    """Share of spikes that differ."""
    rates: Mapping[str, float]
    """Spikes per neuron and timestep in the first network."""
    logits: float
    """Largest absolute difference."""
    predictions: float
    """Share of inputs that both assign to the same class."""


@torch.no_grad()
def record(network: nn.Module, x: Tensor, timesteps: int | None = None) -> Record:
    """Run a deployed network, or a trained one in evaluation mode. Return all spikes, under the same names for both."""
    if isinstance(network, Network):
        spikes, value = {}, x
        for name, value in network.run(x, timesteps):
            if isinstance(network.nodes[name], LIF):
                spikes[name] = value.flatten(2) > 0
        logits = value.expand(timesteps or len(x), *value.shape[1:]).flatten(2) * network.logit_unit
        return Record(spikes, logits)
    kept: dict[str, Tensor] = {}
    layers = {node_name(path): soma for path, soma in somas(network).items()}

    def keep(name: str, spikes: Tensor) -> None:
        while name in kept:  # a layer that runs twice gets the same names as in folding
            name += "_"
        kept[name] = spikes.flatten(2) > 0

    with watched(network, layers, keep):
        return Record(kept, network(x) if timesteps is None else network(x, timesteps))


def agreement(a: Record, b: Record) -> Agreement:
    """Compare two records of the same network and the same input."""
    if set(a.spikes) != set(b.spikes):
        raise ValueError(f"expected the same layers, got {', '.join(a.spikes)} and {', '.join(b.spikes)}")
    different = {name: (s != b.spikes[name]).double().mean().item() for name, s in a.spikes.items()}
    rates = {name: s.double().mean().item() for name, s in a.spikes.items()}
    logits = (a.logits.double() - b.logits.double()).abs().max().item()
    same_class = readout(a.logits).argmax(1) == readout(b.logits).argmax(1)
    return Agreement(different, rates, logits, same_class.double().mean().item())
