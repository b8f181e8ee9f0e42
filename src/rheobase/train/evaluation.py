"""Evaluate a network on its test images."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.data.feed import Feed
from rheobase.deploy.nodes import LIF
from rheobase.functional import readout
from rheobase.nn import Soma, watched
from rheobase.plugins import Part
from rheobase.recipes import Recipe
from rheobase.train.capture import capture
from rheobase.train.distributed import ALONE, Team
from rheobase.train.step import autocast, loss_of


@dataclass(frozen=True)
class Evaluation:
    """The results of a network on its test images."""

    loss: float
    accuracy: float
    firing_rates: dict[str, float]
    """Mean spikes per neuron and timestep of every soma. For other outputs than spikes, the fraction that is not 0."""
    simulated: bool
    """Whether the data are simulated recordings."""
    images: int
    """Number of test images."""
    held_out: int
    """n if every n-th image was held out for testing; 0 if the dataset has separate test images."""
    holdout: int
    """Number of training images that the recipe held out to replace the test images; 0: none."""
    input_rates: dict[str, float]
    """Of recordings, the fractions of the input that are 1 (`one`) and neither 0 nor 1 (`other`); empty for images."""
    precision: str
    """The precision of the computation, as in recipes."""


@torch.no_grad()
def evaluate(
    network: nn.Module,
    feed: Feed,
    recipe: Recipe,
    team: Team = ALONE,
    *,
    loss: Part | None = None,
    captured: bool = False,
) -> Evaluation:
    """Return loss, accuracy and firing rates over the test images.

    If `captured`, a GPU runs the batches as one CUDA graph. This takes memory, which training may not have left.
    """
    somas = {name: module for name, module in network.named_modules() if isinstance(module, Soma | LIF)}
    rates = torch.zeros(2, len(somas), dtype=torch.float64, device=feed.device)  # sums, and numbers of images
    totals = torch.zeros(5, dtype=torch.float64, device=feed.device)  # loss, correct, images, inputs of 1 and others

    places = {name: i for i, name in enumerate(somas)}

    def count(name: str, spikes: Tensor) -> None:
        rates[0, places[name]] += (spikes != 0).mean(dtype=torch.float64) * spikes.shape[1]
        rates[1, places[name]] += spikes.shape[1]  # a layer may run more than once

    def measure(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        with autocast(recipe, feed.device):
            logits = network(images, recipe.timesteps)
        totals[0] += loss_of(logits, labels, recipe, loss) * len(labels)
        totals[1] += (readout(logits).argmax(1) == labels).sum()
        totals[2] += len(labels)
        if feed.info.timesteps:
            one, zero = ((images == value).mean(dtype=torch.float64) for value in (1, 0))
            totals[3] += one * len(labels)
            totals[4] += (1 - one - zero) * len(labels)
        return ()

    step = capture(measure, feed.device, eager_calls=1) if captured else measure
    with watched(network, somas, count):
        for images, labels in feed.testing():
            step(images, labels)
    total, correct, n, ones, others = team.read(team.sum(totals))
    summed, seen = team.sum(rates)
    firing_rates = (summed / seen.clamp(min=1)).tolist()
    rates_by_name = dict(zip(somas, firing_rates, strict=True))
    info = feed.info
    input_rates = {"one": ones / n, "other": others / n} if info.timesteps else {}
    precision = "fp64" if feed.dtype == torch.float64 else recipe.precision
    found = (info.simulated, int(n), info.held_out, info.holdout, input_rates, precision)
    return Evaluation(total / n, correct / n, rates_by_name, *found)
