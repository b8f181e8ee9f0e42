"""How far the run is that a folder is meant for: what `train --continue` decides by."""

from enum import Enum, auto
from pathlib import Path

from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.runs import Run


class Standing(Enum):
    NEW = auto()
    UNFINISHED = auto()
    FINISHED = auto()


def standing(folder: Path, recipe: Recipe) -> Standing:
    """Of a run of `recipe` in `folder`; a run of another recipe there is a ValueError.

    It only reads. Several processes come to the same answer if each asks before it calls `fit`, which writes nothing
    until all of them have come there.
    """
    if not (folder / "recipe.json").exists():
        return Standing.NEW
    run = Run(folder)
    run.refuse_other(recipe)
    rows = run.rows()
    if not rows or rows[-1]["epoch"] < recipe.epochs:
        return Standing.UNFINISHED
    saved = checkpoint.latest(run.checkpoints)  # a kill or damage can have cost the checkpoint of the last epoch
    if saved is None and not run.beginning:
        raise ValueError(f"{folder} is a finished run whose weights were not kept; choose another folder to train again")
    return Standing.FINISHED if saved and saved.step >= rows[-1]["step"] else Standing.UNFINISHED
