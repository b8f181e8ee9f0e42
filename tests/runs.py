"""Folders of runs as training leaves them, without the training."""

from pathlib import Path
from typing import Any

import torch

from rheobase import recipes
from rheobase.data import load
from rheobase.train.runs import Run

RATES = {
    "soma": 0.1, "body.0.soma1": 0.2, "body.0.soma2": 0.3, "body.1.soma1": 0.15, "body.1.soma2": 0.25,
    "body.2.soma1": 0.35, "body.2.soma2": 0.05,
}  # fmt: skip


def made(folder: Path, *settings: str, accuracies: list[float | None], seconds: float = 10.0, **given: Any) -> Run:
    """The run of the demo with an epoch for each of the test accuracies; None is an epoch without a test."""
    recipe = recipes.get("demo").changed(["epochs=3", *settings])
    run = Run.create(folder, recipe, load(recipe.data).info, torch.device("cpu"), **given)
    for epoch, accuracy in enumerate(accuracies, 1):
        row: dict[str, Any] = {"epoch": epoch, "step": epoch, "elapsed": seconds * epoch}
        if accuracy is not None:
            row |= {"test_accuracy": accuracy, "firing_rates": RATES}
        run.append(row)
    return run
