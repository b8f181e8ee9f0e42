"""Gradient norms per layer while training begins (Fig. 2): does the gradient vanish or explode with depth?"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.functional import readout
from rheobase.models import SpikingNet
from rheobase.nn import somas, watched
from rheobase.train.capture import capture


@dataclass(frozen=True)
class GradientNorms:
    """Mean over the steps of the norms of the loss's gradients, by layer from the input to the output.

    As in the paper, the encoding layer (stem) and the decoding layer are left out.
    """

    layers: list[str]
    spikes: list[float]
    """With respect to the spikes of the layer, of the whole batch."""
    weights: list[float]
    """With respect to the weights of its synapses."""
    steps: int

    @property
    def ratio(self) -> float:
        """Of weight gradients, the first layer to the last: below 1 they vanish on their way to the input."""
        return self.weights[0] / self.weights[-1] if self.weights[-1] else float("nan")

    @property
    def spike_ratio(self) -> float:
        """The same of the spikes' gradients."""
        return self.spikes[0] / self.spikes[-1] if self.spikes[-1] else float("nan")


def gradient_norms(
    network: SpikingNet,
    batches: Iterable[tuple[Tensor, Tensor]],
    timesteps: int,
    *,
    lr: float = 0.1,
    autocast: torch.dtype | None = None,
) -> GradientNorms:
    """Train `network` on (images, labels) by SGD with momentum 0.9 and watch the layers of its body.

    `lr=0` leaves the weights where they are. With `autocast` the forward pass runs in that type.
    """
    layers = somas(network.body)
    synapses = {name: layer for name, layer in network.body.named_modules() if isinstance(layer, nn.Conv2d)}
    if not layers:
        raise ValueError("gradient_norms: the network has no layers between its encoding and decoding layers")
    device = network.stem.weight.device  # norms are added up there: a captured step must not wait for the host
    spikes = torch.zeros(len(layers), dtype=torch.float64, device=device)
    weights = torch.zeros(len(synapses), dtype=torch.float64, device=device)

    places = {name: i for i, name in enumerate(layers)}

    def listen(name: str, out: Tensor) -> None:
        def add(gradient: Tensor) -> None:
            spikes[places[name]] += _norm(gradient)

        if out.requires_grad:
            out.register_hook(add)

    def step(images: Tensor, labels: Tensor) -> tuple[Tensor]:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            logits = network(images, timesteps)
        loss = F.cross_entropy(readout(logits.to(torch.promote_types(logits.dtype, torch.float32))), labels)
        optimizer.zero_grad()
        loss.backward()
        for i, layer in enumerate(synapses.values()):
            if layer.weight.grad is not None:  # not frozen
                weights[i] += _norm(layer.weight.grad)
        optimizer.step()
        return (loss.detach(),)

    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    steps, captured = 0, capture(step, device)
    with watched(network, layers, listen, training=True):
        for images, labels in batches:
            captured(images, labels)
            steps += 1
    if not steps:
        raise ValueError("gradient_norms: expected at least one batch, got none")
    by_name = dict(zip(synapses, (weights / steps).tolist(), strict=True))
    return GradientNorms(
        layers=list(layers),
        spikes=(spikes / steps).tolist(),
        weights=[norm for name, norm in by_name.items() if "shortcut" not in name],
        steps=steps,
    )


def _norm(gradient: Tensor) -> Tensor:
    return gradient.norm(dtype=torch.promote_types(gradient.dtype, torch.float32))
