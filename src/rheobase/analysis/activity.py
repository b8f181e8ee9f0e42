"""Firing of neurons (Fig. 6): rates per layer and timestep, silent and saturated channels, and findings in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.nn import somas, watched

# Limits above or below which there is a finding.
MANY_CHANNELS, LOW_RATE, HIGH_RATE, FADING = 0.05, 0.01, 0.5, 0.5


@dataclass(frozen=True)
class LayerActivity:
    """How the neurons of a layer fired."""

    name: str
    neurons: int
    rates: list[float]
    """Mean spikes per neuron at each timestep. For outputs that are not binary, the fraction that is not 0."""
    dead: float
    """Fraction of channels that never fired."""
    saturated: float
    """Fraction of channels whose neurons all fired at every timestep."""

    @property
    def rate(self) -> float:
        """Mean spikes per neuron and timestep."""
        return sum(self.rates) / len(self.rates)

    @property
    def spikes(self) -> float:
        """Mean spikes per neuron in one inference."""
        return sum(self.rates)


@torch.no_grad()
def activity(
    network: nn.Module, batches: Iterable[Tensor], timesteps: int, firing: Mapping[str, nn.Module] | None = None
) -> list[LayerActivity]:
    """Measure the activity of every soma in evaluation mode, on images [N, C, H, W] or sequences [T, N, C, H, W].

    `firing` names other layers that emit spikes, such as those of a deployed network.
    """
    sums: dict[str, Tensor] = {}  # mean spikes [T, C] times number of images
    neurons: dict[str, int] = {}

    def count(name: str, spikes: Tensor) -> None:
        images = spikes.shape[1]
        means = (spikes != 0).double().movedim(2, 1).flatten(2).mean(2) * images
        sums[name] = sums.get(name, 0) + means.cpu()
        neurons[name] = spikes[0, 0].numel()

    total = 0
    with watched(network, somas(network) if firing is None else firing, count):
        for x in batches:
            network(x, timesteps if x.ndim == 4 else None)
            total += x.shape[-4]
    if not total:
        raise ValueError("activity: expected at least one batch, got none")
    layers = []
    for name, added in sums.items():
        means = added / total
        layers.append(
            LayerActivity(
                name=name,
                neurons=neurons[name],
                rates=means.mean(1).tolist(),
                dead=float((means.sum(0) == 0).double().mean()),
                saturated=float((means.mean(0) > 1 - 1e-9).double().mean()),
            )
        )
    return layers


def findings(layers: list[LayerActivity]) -> list[str]:
    """Return what is unusual and what it means, one sentence each. An empty list means that nothing is."""
    found = []
    for layer in layers:
        where = f"{layer.name}: "
        if layer.dead == 1:
            found.append(f"{where}no neuron fires; nothing reaches the next layer")
            continue
        if layer.dead >= MANY_CHANNELS:
            found.append(
                f"{where}{100 * layer.dead:.0f} % of channels never fire; they pass nothing on and can be pruned"
            )
        if layer.saturated >= MANY_CHANNELS:
            found.append(
                f"{where}{100 * layer.saturated:.0f} % of channels always fire; they act as a bias and waste spikes"
            )
        if layer.rate < LOW_RATE:
            found.append(
                f"{where}only {100 * layer.rate:.2f} % of neurons fire per timestep; little reaches the next layer"
            )
        if layer.rate > HIGH_RATE:
            found.append(f"{where}{100 * layer.rate:.0f} % of neurons fire per timestep; spikes are no longer sparse")
        if len(layer.rates) > 1 and layer.rates[-1] < FADING * layer.rates[0]:
            found.append(f"{where}firing fades from {layer.rates[0]:.3f} to {layer.rates[-1]:.3f} over the timesteps")
    return found
