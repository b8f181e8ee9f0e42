"""How far the run is that a folder is meant for: what `train --continue` decides by. Folders of several runs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.distributed import ALONE, Team
from rheobase.train.muster import together
from rheobase.train.runs import Run, own_folder
from rheobase.train.start import started_from


class Standing(Enum):
    NEW = "no run"
    UNFINISHED = "an unfinished run"
    FINISHED = "a finished run"


def standing(folder: Path, recipe: Recipe | None, start: str | None = None, team: Team = ALONE) -> Standing:
    """Of a run of `recipe` in `folder` that began with the weights of `start`; any other run there is a ValueError.

    Without a recipe it is that of any run. It only reads. All processes of a `team` ask together, and must come to the
    same answer.
    """
    with together(team):
        found = _standing(folder, recipe, start)
    first = team.confer(found)
    with together(team):
        if found is not first:
            raise ValueError(
                f"finds {found.value} in {folder}, and the first process {first.value}; "
                "give a folder that all machines share"
            )
    return found


def _standing(folder: Path, recipe: Recipe | None, start: str | None) -> Standing:
    if not (folder / "recipe.json").exists():
        return Standing.NEW
    run = Run(folder)
    if recipe is not None:
        _refuse_other(run, recipe, start)
    rows = run.rows()
    if not rows or rows[-1]["epoch"] < run.recipe.epochs:
        return Standing.UNFINISHED
    saved = checkpoint.latest(run.checkpoints)  # a kill or damage can have cost the checkpoint of the last epoch
    if saved is None and not run.beginning:
        raise ValueError(f"{folder} is a finished run without weights; choose another folder to train it again")
    return Standing.FINISHED if saved and saved.step >= rows[-1]["step"] else Standing.UNFINISHED


def _refuse_other(run: Run, recipe: Recipe, start: str | None) -> None:
    run.refuse_other(recipe)
    if not started_from(run, start):
        own = "random weights" if run.start is None else run.start["from"]
        raise ValueError(
            f"{run.folder} holds a run that started from {own}, not from {start or 'random weights'}; "
            "go on with it as it began, or choose another folder"
        )


@contextmanager
def folder_of_several(out: Path | None, name: str, *, go_on: bool, alone: bool) -> Iterator[Path]:
    """The folder for the runs of several seeds: `out`, or else the first free runs/<name>-<number>.

    It may have runs in it if those are to `go_on`; a process that is not `alone` cannot choose one by itself.
    """
    if out is None:
        if not alone:
            raise ValueError("runs of several processes need a folder that all can see; give one with --out")
        own = own_folder(name)
        try:
            yield own
        finally:
            with suppress(OSError):  # it stays, unless nothing is in it
                own.rmdir()
        return
    if out.exists() and (not out.is_dir() or (out / "recipe.json").exists()):
        raise ValueError(
            f"{out} is {'one run' if out.is_dir() else 'a file'}, not a folder for several; choose another"
        )
    if not go_on and out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not an empty folder; choose another, or go on with the runs in it by --continue")
    yield out
