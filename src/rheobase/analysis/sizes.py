"""Sizes of a network, computed from shapes alone. Nothing is allocated."""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.models import MODELS, build
from rheobase.nn import somas, watched
from rheobase.plugins import network as networks


@dataclass(frozen=True)
class Layer:
    """A synapse: a convolution or fully connected layer, for one image and one timestep."""

    name: str
    parameters: int
    multiplications: int


def synapses(network: nn.Module, shape: tuple[int, ...]) -> list[Layer]:
    """Return every synapse of a network on meta or fake tensors, for one image of `shape` [C, H, W]."""
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    found = []

    def measure(name: str, output: Tensor) -> None:
        layer, positions = layers[name], output.numel() // output.shape[2]
        found.append(Layer(name, sum(p.numel() for p in layer.parameters()), layer.weight.numel() * positions))

    with torch.no_grad(), watched(network, layers, measure):
        network(_image(network, shape), 1)
    return found


def neurons(network: nn.Module, shape: tuple[int, ...]) -> dict[str, int]:
    """Return the number of neurons of every soma of a network on meta or fake tensors, for images [C, H, W]."""
    found: dict[str, int] = {}
    with torch.no_grad(), watched(network, somas(network), lambda name, s: found.update({name: s[0, 0].numel()})):
        network(_image(network, shape), 1)
    return found


def _image(network: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialised image on the device of the network."""
    where = next((p.device for p in network.parameters()), torch.device("meta"))
    return torch.empty(1, *shape, device=where)


@dataclass(frozen=True)
class Summary:
    """Sizes of a network at its default input. Multiplications are per timestep."""

    name: str
    purpose: str
    shape: tuple[int, ...]
    layers: int
    parameters: int
    multiplications: int


def summary(name: str) -> Summary:
    """Return the sizes of a network of `MODELS` at its default input. Shortcuts do not count as layers."""
    shape = default_input(name)
    parameters = signature(MODELS[name]).parameters
    classes = parameters["num_classes"].default if "num_classes" in parameters else None
    with torch.device("meta"):
        network = build_default(name, classes if isinstance(classes, int) else 10, shape)
    layers = synapses(network, shape)
    return Summary(
        name=name,
        purpose=next(iter((MODELS[name].__doc__ or "").strip().splitlines()), ""),
        shape=shape,
        layers=sum("shortcut" not in layer.name for layer in layers),
        parameters=sum(p.numel() for p in network.parameters()),
        multiplications=sum(layer.multiplications for layer in layers),
    )


def build_default(name: str, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Build the network for images of this shape, with the paper's neuron."""
    sizes: dict[str, Any] = {"num_classes": classes, "in_channels": shape[0], "image_size": shape[1]}
    return build(name, decay=0.25, v_th=0.5, width=1.0, **sizes)


def default_input(name: str) -> tuple[int, int, int]:
    """Return the default input shape [C, H, W] of a network. A plugin may leave it open."""
    defaults = {
        p.name: p.default for p in signature(networks.get(name)).parameters.values() if isinstance(p.default, int)
    }
    channels, size = defaults.get("in_channels", 3), defaults.get("image_size", 32)
    return channels, size, size
