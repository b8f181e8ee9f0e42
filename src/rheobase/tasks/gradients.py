"""Gradient norms per layer at the start of training (Fig. 2): does the gradient vanish or explode with depth?"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.nn import Soma, somas, watched
from rheobase.recipes import Recipe
from rheobase.train.capture import capture
from rheobase.train.optimizers import make_optimizer, set_learning_rate
from rheobase.train.step import make_step

Synapse = nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class GradientNorms:
    """Norms of the gradients of the loss, averaged over the steps, for every layer from the input to the output.

    As in the paper, the encoding and decoding layers are left out.
    """

    layers: list[str]
    spikes: list[float]
    """Gradients with respect to the spikes of the layer in the whole batch."""
    weights: list[float]
    """Gradients with respect to the weights of its synapses."""
    steps: int

    @property
    def ratio(self) -> float:
        """Weight gradient of the first layer relative to the last: below 1, gradients vanish towards the input."""
        return self.weights[0] / self.weights[-1] if self.weights[-1] else float("nan")

    @property
    def spike_ratio(self) -> float:
        """The same ratio for the gradients of spikes."""
        return self.spikes[0] / self.spikes[-1] if self.spikes[-1] else float("nan")


def gradient_norms(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], recipe: Recipe, *, learn: bool = True
) -> GradientNorms:
    """Train `network` on (images, labels) with the recipe's step and measure its layers.

    If `learn` is false, the weights do not change.
    """
    layers, synapses = inner_layers(network)
    device = next(network.parameters()).device  # norms are summed there: a captured step must not wait for the host
    spikes = torch.zeros(len(layers), dtype=torch.float64, device=device)
    weights = torch.zeros(len(synapses), dtype=torch.float64, device=device)
    places = {name: i for i, name in enumerate(layers)}

    def listen(name: str, out: Tensor) -> None:
        def add(gradient: Tensor) -> None:
            spikes[places[name]] += _norm(gradient)

        if out.requires_grad:
            out.register_hook(add)

    optimizer = make_optimizer(network, recipe, device)
    if not learn:
        set_learning_rate(optimizer, 0.0)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    train = make_step(network, optimizer, scaler, recipe, recipe.timesteps)

    def step(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        result = train(images, labels)
        for i, layer in enumerate(synapses.values()):
            if layer.weight.grad is not None:  # not frozen
                weights[i] += _norm(layer.weight.grad)
        return result

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


def inner_layers(network: nn.Module) -> tuple[dict[str, Soma], dict[str, Synapse]]:
    """Return somas and synapses between the encoding and decoding layers: those of the body, if there is one."""
    body = getattr(network, "body", None)
    inner = body if isinstance(body, nn.Module) else network
    layers = somas(inner)
    synapses: dict[str, Synapse] = {n: m for n, m in inner.named_modules() if isinstance(m, Synapse)}
    if inner is network:  # the first soma and synapse encode the image, the last synapse decodes
        layers, synapses = dict(list(layers.items())[1:]), dict(list(synapses.items())[1:-1])
    if not layers:
        raise ValueError("gradient_norms: the network has no layers between its encoding and decoding layers")
    return layers, synapses


def _norm(gradient: Tensor) -> Tensor:
    return gradient.norm(dtype=torch.promote_types(gradient.dtype, torch.float32))
