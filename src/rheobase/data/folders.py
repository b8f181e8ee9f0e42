"""Folders with one sub-folder of files per class: list the files and split them into training and test."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path

HELD_OUT = 5  # without a `val` folder, every fifth file of a class, sorted by name, is for testing

Classes = dict[str, list[Path]]


def split(folder: Path, suffixes: Collection[str], what: str, foreign: Collection[str] = ()) -> tuple[Classes, Classes]:
    """Return the training and test files of every class. `what` names the files in messages.

    A warning counts files with `foreign` suffixes: they hold the same, but cannot be read.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; give one with a sub-folder of {what} per class, with --data or --root"
        )
    if not held_out(folder):
        train, test = (_listed(folder / part, suffixes, what, foreign) for part in ("train", "val"))
        if train.keys() != test.keys():
            different = ", ".join(sorted(train.keys() ^ test.keys())[:5])
            raise ValueError(f"train and val in {folder} have different classes: {different}; give both the same")
        return train, test
    files = _listed(folder, suffixes, what, foreign)
    train = {name: [p for i, p in enumerate(paths, 1) if i % HELD_OUT] for name, paths in files.items()}
    test = {name: paths[HELD_OUT - 1 :: HELD_OUT] for name, paths in files.items()}
    if not any(test.values()):
        raise ValueError(
            f"{folder} has too few files; add at least {HELD_OUT} {what} to a class, or folders train and val"
        )
    if untested := [name for name, paths in test.items() if not paths]:
        few = f"fewer than {HELD_OUT} {what}, so none for testing"
        names = ", ".join(untested[:5]) + (", ..." if untested[5:] else "")
        warnings.warn(f"{folder}: {few}, in {names}; add more, or folders train and val", stacklevel=2)
    return train, test


def held_out(folder: Path) -> int:
    """Return n if every n-th file is for testing, or 0 if there are folders `train` and `val`."""
    return 0 if (folder / "train").is_dir() and (folder / "val").is_dir() else HELD_OUT


def flat(classes: Classes) -> tuple[list[Path], list[int]]:
    """Return all files and their class numbers."""
    paths = [path for group in classes.values() for path in group]
    return paths, [label for label, group in enumerate(classes.values()) for _ in group]


def _listed(folder: Path, suffixes: Collection[str], what: str, foreign: Collection[str]) -> Classes:
    classes, unread = {}, Counter[str]()
    hidden = (".", "__MACOSX")  # macOS adds the latter to zip archives
    for path in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(hidden)):
        files = defaultdict[str, list[Path]](list)
        for file in path.iterdir():
            if not file.name.startswith("."):
                files[file.suffix.lower()].append(file)
        classes[path.name] = sorted(file for suffix in suffixes for file in files[suffix])
        here = Counter({suffix: len(files[suffix]) for suffix in foreign if suffix in files})
        if not classes[path.name] and any(p.is_dir() for p in path.iterdir()):
            raise ValueError(
                f"{path} has no {what}, but folders; put the {what} of a class into its folder, and call the parts for "
                "training and testing train and val"
            )
        if not classes[path.name]:
            few = ", ".join(f"*{suffix}" for suffix in sorted(suffixes))
            found = f", got {_counts(here)}; convert them" if here else ""
            raise ValueError(f"{path} has no {what}; expected files such as {few}{found}")
        unread += here
    if not classes:
        raise ValueError(f"{folder} has no sub-folders; expected one with {what} per class")
    if unread:
        warnings.warn(
            f"{folder}: left out {what} of formats that are not read: {_counts(unread)}; convert them to use them",
            stacklevel=2,
        )
    return classes


def _counts(files: Counter[str]) -> str:
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(files.items()))
