"""Data sets: one file each; `load` is the only place that chooses one."""

from pathlib import Path

from rheobase.data import digits
from rheobase.data.dataset import Dataset, Split

__all__ = ["DATASETS", "Dataset", "Split", "load"]

DATASETS = ("digits",)


def load(name: str, folder: Path | None = None) -> Dataset:
    """The data set of that name; `folder` is where its files are."""
    if name == "digits":
        return digits.load()
    raise ValueError(f"unknown data set '{name}'; choose one of {', '.join(DATASETS)}")
