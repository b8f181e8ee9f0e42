"""Networks by name: `build` is the only place that chooses one."""

from collections.abc import Callable
from typing import Any

from rheobase.models.blocks import BasicBlock, Bottleneck, GlobalHead, PlainBlock, PooledHead, SomaFactory
from rheobase.models.networks import (
    plain5,
    plain20,
    resnet8,
    resnet17,
    resnet19,
    resnet34,
    resnet34_large,
    resnet50,
)
from rheobase.models.spiking_net import SpikingNet

__all__ = [
    "MODELS",
    "BasicBlock",
    "Bottleneck",
    "GlobalHead",
    "PlainBlock",
    "PooledHead",
    "SomaFactory",
    "SpikingNet",
    "build",
    "plain5",
    "plain20",
    "resnet8",
    "resnet17",
    "resnet19",
    "resnet34",
    "resnet34_large",
    "resnet50",
]

MODELS: dict[str, Callable[..., SpikingNet]] = {
    "plain5": plain5,
    "plain20": plain20,
    "resnet8": resnet8,
    "resnet17": resnet17,
    "resnet19": resnet19,
    "resnet34": resnet34,
    "resnet34_large": resnet34_large,
    "resnet50": resnet50,
}


def build(name: str, **options: Any) -> SpikingNet:
    """The network of that name in `MODELS`."""
    if name not in MODELS:
        raise ValueError(f"unknown network '{name}'; choose one of {', '.join(MODELS)}")
    return MODELS[name](**options)
