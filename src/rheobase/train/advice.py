"""Advice before a long training run: what would be faster."""

from dataclasses import replace
from pathlib import Path

import torch

from rheobase.train import plan
from rheobase.train.runs import Run

PATIENCE = 3600.0  # seconds
SMALLER = "resnet8"  # the smallest residual network that takes the images of any dataset
CPU = torch.device("cpu")


def on_cpu(folder: Path, left: float) -> str | None:
    """Return one line of advice if the rest of the run in `folder` takes more than an hour on this CPU.

    `left` is the fraction of the run that is left.
    """
    run = Run(folder)
    recipe, data = run.recipe, run.data
    try:
        # Two images give an estimate that is too high. If even that is short, there is nothing to say.
        hasty = plan.times(recipe, data, CPU, seconds=0.0).recipe
    except Exception:  # a user's own part failed; training reports it for a whole batch
        return None
    if not data.images or hasty is None or left * hasty < PATIENCE:
        return None
    whole = plan.times(recipe, data, CPU).recipe
    if whole is None or left * whole < PATIENCE:
        return None
    line = f"this CPU will need about {plan.duration(left * whole)}"
    other = None
    if run.start is None:  # otherwise the weights to start from fit this network only
        other = plan.times(replace(recipe, network=SMALLER), data, CPU).recipe
    if other is None or other > whole / 2:
        return f"{line}; fewer epochs or timesteps, smaller images or a GPU make it shorter"
    return f"{line}; about {plan.duration(left * other)} with a small network: --set network={SMALLER}"
