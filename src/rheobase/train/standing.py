"""Whether a folder holds no run, an unfinished or a finished one, for `train --continue`; folders of several runs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.distributed import ALONE, Team
from rheobase.train.folders import own_folder
from rheobase.train.muster import together
from rheobase.train.runs import Run
from rheobase.train.start import started_from


class Standing(Enum):
    """What a folder holds."""

    NEW = "no run"
    UNFINISHED = "an unfinished run"
    FINISHED = "a finished run"


def standing(folder: Path, recipe: Recipe | None, start: str | None = None, team: Team = ALONE) -> Standing:
    """Return what `folder` holds of a run of `recipe` that started from `start`. Raise a ValueError for any other run.

    Without a recipe, any run will do. Nothing is written. All processes of a `team` call this together and must find
    the same.
    """
    with together(team):
        found = _standing(folder, recipe, start)
    first = team.confer(found)
    with together(team):
        if found is not first:
            raise ValueError(
                f"finds {found.value} in {folder}, but the first process finds {first.value}; "
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
    saved = checkpoint.latest(run.checkpoints)  # a kill or damage may have lost the checkpoint of the last epoch
    if saved is None and not run.beginning:
        raise ValueError(f"{folder} holds a finished run without weights; choose another folder to train it again")
    return Standing.FINISHED if saved and saved.step >= rows[-1]["step"] else Standing.UNFINISHED


def _refuse_other(run: Run, recipe: Recipe, start: str | None) -> None:
    run.refuse_other(recipe)
    if not started_from(run, start):
        own = "random weights" if run.start is None else run.start["from"]
        raise ValueError(
            f"{run.folder} holds a run that started from {own}, not from {start or 'random weights'}; "
            "continue it as it was started, or choose another folder"
        )


@contextmanager
def folder_of_several(out: Path | None, name: str, *, go_on: bool, alone: bool) -> Iterator[Path]:
    """Yield the folder for the runs of several seeds: `out`, by default the first free runs/<name>-<number>.

    It may contain runs if these are to `go_on`. Without `out`, the process must be `alone`.
    """
    if out is None:
        if not alone:
            raise ValueError("a run of several processes needs a folder that all of them see; add --out")
        own = own_folder(name)
        try:
            yield own
        finally:
            with suppress(OSError):  # remove it only if it is empty
                own.rmdir()
        return
    if out.exists() and (not out.is_dir() or (out / "recipe.json").exists()):
        raise ValueError(
            f"{out} is {'a single run' if out.is_dir() else 'a file'}, not a folder for several runs; choose another"
        )
    if not go_on and out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not an empty folder; choose another, or add --continue to resume the runs in it")
    yield out
