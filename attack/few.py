"""A plugin with so few digits that a run takes a fraction of a second, as hundreds of runs are killed."""

from pathlib import Path

from rheobase.data.dataset import Dataset, Split
from rheobase.data.sets.digits import CLASSES, digits
from rheobase.plugins import dataset

TRAIN, TEST = 46, 23  # images


@dataset
def few_digits(path: Path | None = None) -> Dataset:
    """Return the first digits of each split."""
    whole = digits()
    splits = ((whole.train, TRAIN), (whole.test, TEST))
    train, test = (Split(split.images[:number], split.labels[:number]) for split, number in splits)
    return Dataset.of("few_digits", train, test, CLASSES)
