"""Networks on the law, open to observation; and statistics for networks that were never trained."""

import copy

import torch
from torch import Tensor, nn

from rheobase.nn import ReferenceSoma, Soma, set_memory, somas


def on_reference(network: nn.Module) -> nn.Module:
    """A copy of `network` whose somas are `ReferenceSoma`s with the same parameters and statistics."""
    network = copy.deepcopy(network)
    set_memory(network, "speed")
    for path, soma in somas(network).items():
        if type(soma) is Soma:
            reference = ReferenceSoma(soma.channels, soma.branches, **soma.settings)
            reference.to(soma.weight.device, soma.weight.dtype)
            reference.load_state_dict(soma.state_dict())
            network.set_submodule(path, reference.train(soma.training))
    return network


@torch.no_grad()
def calibrate_statistics(network: nn.Module, images: Tensor, timesteps: int) -> None:
    """Make the running statistics of an untrained network those of this batch, so that it can be evaluated."""
    found = somas(network).values()
    before = [(soma.momentum, soma.training) for soma in found]
    for soma in found:
        soma.momentum = 1.0
        soma.train()
    network(images, timesteps)
    for soma, (momentum, training) in zip(found, before, strict=True):
        soma.momentum = momentum
        soma.train(training)
