"""Folders for new runs: a free one, and what a start that was killed has left in it."""

import shutil
from itertools import count
from pathlib import Path

from rheobase.train.claim import LOCK

BEGINNING = ".beginning"  # a file in the folder of a run until its first checkpoint


def own_folder(name: str) -> Path:
    """Return the first free runs/<name>-<number>. Create it, as another run may look for one at the same moment."""
    for folder in (Path("runs") / f"{name}-{number}" for number in count(1)):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OSError(f"cannot write to runs: {error.strerror}; choose another folder with --out") from error
        return folder
    raise AssertionError("unreachable: count() does not end")


def refuse_used(folder: Path) -> None:
    """Raise a ValueError if `folder` contains anything, except the rest of a run that was killed while starting."""
    if (folder / BEGINNING).exists() and not (folder / "recipe.json").exists():
        return
    if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder; choose another, or resume the run in it")


def clear(folder: Path) -> None:
    """Remove everything in `folder` except its lock. After a kill in between, the next start clears the rest."""
    order = {"recipe.json": 0, BEGINNING: 2}
    for left in sorted(folder.iterdir() if folder.exists() else [], key=lambda path: order.get(path.name, 1)):
        if left.name != LOCK:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
