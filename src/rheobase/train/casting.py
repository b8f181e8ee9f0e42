"""Weights in the type that autocast computes in: cast once and for all instead of at every call."""

import torch
from torch import nn

from rheobase.deploy.convolution import FrozenConv2d
from rheobase.nn import Conv2d

SYNAPSES = (nn.Conv2d, nn.Linear, Conv2d, FrozenConv2d)  # no others: who knows what these do with a weight


def synapses(network: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """The layers, by name, that do nothing with their weights but what autocast casts them for."""
    return {name: module for name, module in network.named_modules() if type(module) in SYNAPSES}


def hold_weights(network: nn.Module, dtype: torch.dtype) -> None:
    """Keep the weights of synapses in `dtype`, for inference under autocast: the results are the same.

    Biases stay: the neurons of a deployed network add them in float32.
    """
    for synapse in synapses(network).values():
        synapse.weight = nn.Parameter(synapse.weight.detach().to(dtype), requires_grad=False)
