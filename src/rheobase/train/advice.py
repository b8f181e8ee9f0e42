"""Advice before a training that takes long: what else there is."""

from dataclasses import replace
from pathlib import Path

import torch

from rheobase.train import plan
from rheobase.train.runs import Run

PATIENCE = 3600.0  # seconds
SMALLER = "resnet8"  # the smallest residual network that takes images of any data set
CPU = torch.device("cpu")


def on_cpu(folder: Path, left: float) -> str | None:
    """One line for the run in `folder` if what is `left` of it (1 is all) takes more than an hour on this CPU."""
    run = Run(folder)
    recipe, data = run.recipe, run.data
    try:
        hasty = plan.times(recipe, data, CPU, seconds=0.0).recipe  # of two images: too high, and often enough to know
    except Exception:  # of somebody's own part: the training will say it, of a whole batch
        return None
    if not data.images or hasty is None or left * hasty < PATIENCE:
        return None
    whole = plan.times(recipe, data, CPU).recipe
    if whole is None or left * whole < PATIENCE:
        return None
    line = f"this CPU will need about {plan.duration(left * whole)}"
    other = None
    if run.start is None:  # another network could not start there
        other = plan.times(replace(recipe, network=SMALLER), data, CPU).recipe
    if other is None or other > whole / 2:
        return f"{line}; fewer epochs or timesteps, smaller images or a GPU make it shorter"
    return f"{line}; about {plan.duration(left * other)} with a small network: --set network={SMALLER}"
