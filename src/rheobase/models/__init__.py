"""Networks: an encoding layer (stem), a body of blocks, a decoding head.

    image [N, C, H, W] or sequence [T, N, C, H, W] -> stem -> body -> head -> logits [T, N, K]

`blocks` are classes; `networks` are small functions that combine them. No network stores T, so it can train at one T
and run at another. Only `build` looks up a network by name.
"""

from inspect import signature
from typing import Any

from torch import nn

from rheobase import plugins
from rheobase.models.blocks import (
    BasicBlock,
    Bottleneck,
    DenseHead,
    GlobalHead,
    MSBlock,
    PlainBlock,
    PooledBlock,
    PooledHead,
    SEWBlock,
    SEWBottleneck,
    SomaFactory,
)
from rheobase.models.networks import plain5, plain20, resnet8, resnet17, resnet19, resnet34, resnet34_large, resnet50
from rheobase.models.relatives import (
    cifarnet,
    ms_resnet18,
    ms_resnet19,
    ms_resnet34,
    sew_resnet18,
    sew_resnet19,
    sew_resnet34,
    sew_resnet50,
    vgg11,
    vgg16,
)
from rheobase.models.spiking_net import SpikingNet
from rheobase.nn import QcfsSoma, ReluSoma, Soma, set_memory

__all__ = [
    "MODELS",
    "BasicBlock",
    "Bottleneck",
    "DenseHead",
    "GlobalHead",
    "MSBlock",
    "PlainBlock",
    "PooledBlock",
    "PooledHead",
    "SEWBlock",
    "SEWBottleneck",
    "SomaFactory",
    "SpikingNet",
    "build",
    "cifarnet",
    "ms_resnet18",
    "ms_resnet19",
    "ms_resnet34",
    "plain5",
    "plain20",
    "resnet8",
    "resnet17",
    "resnet19",
    "resnet34",
    "resnet34_large",
    "resnet50",
    "sew_resnet18",
    "sew_resnet19",
    "sew_resnet34",
    "sew_resnet50",
    "vgg11",
    "vgg16",
]

MODELS = plugins.network.parts
"""All networks by name: functions that build them."""
plugins.neuron.add("lif", Soma)
plugins.neuron.add("relu", ReluSoma)
plugins.neuron.add("qcfs", QcfsSoma)


def build(name: str | plugins.Part, *, memory: str = "speed", **options: Any) -> Any:
    """Build a network by name, built in or from a plugin, or by a function given instead of a name.

    `memory` is what its convolutions keep for the backward pass (see `nn.MEMORY`). `options` go to the function:
    num_classes, in_channels, image_size, soma, and the settings of the neuron (see `nn.Soma`).
    """
    function = plugins.network.get(name) if isinstance(name, str) else name
    label = name if isinstance(name, str) else getattr(name, "__name__", "network")
    try:
        network = function(**options)
    except TypeError as error:
        raise ValueError(
            f"network '{label}' cannot be built from {', '.join(options) or 'nothing'}: {error}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"network '{label}': expected a torch.nn.Module, got {type(network).__name__}")
    try:
        signature(network.forward).bind("x", "timesteps")
    except TypeError:
        raise ValueError(
            f"network '{label}': forward must take (x, timesteps); begin it with x = as_sequence(x, timesteps)"
        ) from None
    set_memory(network, memory)
    return network
