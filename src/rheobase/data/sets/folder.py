"""Your own images: a folder with one sub-folder per class, or with two such folders, `train` and `val`.

Shards made by `rheobase pack` and the original archives of ImageNet work too. Small datasets are decoded once and kept
in memory (`folder`); large ones are decoded batch by batch (`pictures`, `imagenet`).
"""

from dataclasses import replace
from pathlib import Path

import torch

from rheobase.data import ilsvrc, shards
from rheobase.data.dataset import Dataset, Split, prefetch
from rheobase.data.expectation import expecting
from rheobase.data.files import FOREIGN, SUFFIXES, Files
from rheobase.data.folders import Classes, flat, held_out, split
from rheobase.data.shards import Listing, Listings
from rheobase.plugins import dataset

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
LIMIT = 16 * 2**30
BATCH = 256  # images to decode at once


@dataset
@expecting(classes=10, channels=3, size=32)
def folder(path: Path, *, size: int = 0) -> Dataset:
    """Load all images into memory, resized to `size`. The training images set the normalisation."""
    classes, train, test, held_out = _split(path, size)
    if size < 1:
        raise ValueError(
            "dataset 'folder' needs an image size, for example 32; add --size 32 to `rheobase data`, "
            "or --set image_size=32 to `rheobase train`"
        )
    needed = (len(train) + len(test)) * 3 * size**2
    if needed > LIMIT:
        raise ValueError(f"the images in {path} take {needed / 2**30:.0f} GiB at size {size}; use --set data=pictures")
    own, other = _decoded(replace(train, margin=1.0)), _decoded(replace(test, margin=1.0))
    return Dataset.of("folder", own, other, classes, held_out=held_out)


@dataset
@expecting(classes=10, channels=3, size=224)
def pictures(path: Path, *, size: int = 224) -> Dataset:
    """Decode images batch by batch: random parts for training. The normalisation is that of ImageNet."""
    return _on_demand("pictures", path, size)


@dataset
@expecting(classes=1000, channels=3, size=224, images=1_281_167)
def imagenet(path: Path, *, size: int = 224) -> Dataset:
    """Load ImageNet in the same way."""
    return _on_demand("imagenet", path, size)


def _on_demand(name: str, path: Path, size: int) -> Dataset:
    classes, train, test, held_out = _split(path, size)
    return Dataset.of(name, train, test, classes, mean=IMAGENET_MEAN, std=IMAGENET_STD, held_out=held_out)


def _decoded(files: Files) -> Split:
    images = torch.empty(len(files), *files.shape, dtype=torch.uint8)
    for index, read in prefetch((i, files.begin(i)) for i in torch.arange(len(files)).split(BATCH)):
        images[index] = read()
    return Split(images, files.labels)


def _split(folder: Path, size: int) -> tuple[tuple[str, ...], Files, Files, int]:
    """Return class names, training files, test files, and n if every n-th image was held out for testing."""
    classes, train, test = listings(folder)
    own, other = (Files(part.places, part.labels, size) for part in (train, test))
    return classes, own, other, held_out_in(folder)


def listings(folder: Path) -> Listings:
    """Return the classes in a folder, and where its training and test images are."""
    if (folder / shards.INDEX).is_file():
        return shards.read_index(folder / shards.INDEX)
    if ilsvrc.is_here(folder):
        return ilsvrc.listings(folder)
    train, test = split(folder, SUFFIXES, "images", FOREIGN)
    return tuple(train), _listing(train), _listing(test)


def held_out_in(folder: Path) -> int:
    """Return n if every n-th image in `folder` is for testing, or 0 if the split is given."""
    if (folder / shards.INDEX).is_file():
        return shards.held_out(folder / shards.INDEX)
    return 0 if ilsvrc.is_here(folder) else held_out(folder)


def _listing(classes: Classes) -> Listing:
    places, labels = flat(classes)
    return Listing(places, torch.tensor(labels))
