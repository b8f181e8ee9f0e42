"""Make the somas of a network observable, and calibrate the statistics of an untrained network."""

import copy

import torch
from torch import Tensor, nn

from rheobase.nn import ReferenceSoma, Soma, normalisations, set_memory, somas


def on_reference(network: nn.Module) -> nn.Module:
    """Return a copy of `network` whose somas are `ReferenceSoma`s with the same parameters and statistics."""
    network = copy.deepcopy(network)
    set_memory(network, "speed")
    for path, soma in somas(network).items():
        if type(soma) is Soma:
            reference = ReferenceSoma(soma.channels, soma.branches, **soma.settings)
            reference.to(soma.bias.device, soma.bias.dtype)
            reference.load_state_dict(soma.state_dict())
            network.set_submodule(path, reference.train(soma.training))
    return network


@torch.no_grad()
def calibrate_statistics(network: nn.Module, images: Tensor, timesteps: int) -> None:
    """Set the running statistics of an untrained network to those of this batch, so that it can be evaluated."""
    found = normalisations(network)
    before = [(layer.momentum, layer.training) for layer in found]
    for layer in found:
        layer.momentum = 1.0
        layer.train()
    network(images, timesteps)
    for layer, (momentum, training) in zip(found, before, strict=True):
        layer.momentum = momentum
        layer.train(training)
