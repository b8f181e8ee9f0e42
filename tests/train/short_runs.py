"""Runs of a few seconds on the embedded digits, and what ends them early."""

import os
import signal
from pathlib import Path

import torch

from rheobase import recipes
from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.progress import Reporter
from rheobase.train.runs import Run


def recipe(*settings: str) -> Recipe:
    """Six steps per epoch."""
    return recipes.get("demo").changed(["epochs=3", "batch_size=256", "timesteps=2", *settings])


def final(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return {f"{file}.{name}": t for file, tensors in found.tensors.items() for name, t in tensors.items()}


def assert_identical(folder: Path, other: Path) -> None:
    first, second = final(folder), final(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    timings = ("seconds", "images_per_second", "elapsed")
    rows = [[{k: v for k, v in row.items() if k not in timings} for row in Run(f).rows()] for f in (folder, other)]
    assert rows[0] == rows[1]


class StopAt(Reporter):
    """Sends Ctrl-C to this process after a step."""

    def __init__(self, step: int) -> None:
        self.at, self.done = step, 0

    def due(self) -> bool:
        self.done += 1
        if self.done == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return False


class Leave(Reporter):
    """Ends the training after a step, as a kill: nothing is saved."""

    def __init__(self, step: int) -> None:
        self.left = step

    def due(self) -> bool:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return False
