"""What a network keeps for the backward pass."""

from torch import nn

from rheobase.nn.convolution import Conv2d
from rheobase.nn.soma import Soma

MEMORY = {
    "speed": "keep spikes and synapse outputs unchanged",
    "packed": "keep spikes as one bit each",
    "recompute": "keep only spikes, as one bit each, and recompute the synapse outputs",
}
"""What each memory mode of a network keeps for the backward pass."""


def set_memory(module: nn.Module, memory: str) -> None:
    """Set what every convolution in `module` keeps for the backward pass: a key of `MEMORY`.

    This saves memory if the convolution feeds a soma. Its input is kept as bits if it comes straight from a soma.
    """
    if memory not in MEMORY:
        raise ValueError(f"unknown memory mode '{memory}'; choose one of {', '.join(MEMORY)}")
    for path, layer in module.named_modules():
        if isinstance(layer, Conv2d):
            layer.memory, layer.path = memory, path
        elif isinstance(layer, Soma):
            layer.pack = memory != "speed"
