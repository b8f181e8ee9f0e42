"""Images of your own: a folder with one sub-folder per class, or with `train` and `val` folders of that form; shards of
it (`rheobase pack`); or the original archives of ImageNet.

Small sets are decoded once and kept (`folder`); large ones are decoded batch by batch (`imagenet`).
"""

from dataclasses import replace
from pathlib import Path

import torch

from rheobase.data import ilsvrc, shards
from rheobase.data.dataset import Dataset, Split, prefetch
from rheobase.data.expectation import expecting
from rheobase.data.files import SUFFIXES, Files
from rheobase.data.folders import Classes, flat, held_out, split
from rheobase.data.shards import Listing, Listings
from rheobase.plugins import dataset

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
LIMIT = 16 * 2**30
BATCH = 256  # of images that are decoded to be kept


@dataset
@expecting(classes=10, channels=3, size=32)
def folder(path: Path, *, size: int = 0) -> Dataset:
    """All images, resized to `size`, in memory; normalisation follows from the training images."""
    if size < 1:
        raise ValueError(
            "data set 'folder' needs a size for its images, 32 for example: add --size 32 to `rheobase data`, "
            "--set image_size=32 to `rheobase train`"
        )
    classes, train, test, held_out = _split(path, size)
    needed = (len(train) + len(test)) * 3 * size**2
    if needed > LIMIT:
        raise ValueError(f"the images in {path} take {needed / 2**30:.0f} GiB at size {size}; use --set data=imagenet")
    own, other = _decoded(replace(train, margin=1.0)), _decoded(replace(test, margin=1.0))
    return Dataset.of("folder", own, other, classes, held_out=held_out)


@dataset
@expecting(classes=1000, channels=3, size=224, images=1_281_167)
def imagenet(path: Path, *, size: int = 224) -> Dataset:
    """Images decoded batch by batch, normalised as usual for ImageNet."""
    classes, train, test, held_out = _split(path, size)
    return Dataset.of("imagenet", train, test, classes, mean=IMAGENET_MEAN, std=IMAGENET_STD, held_out=held_out)


def _decoded(files: Files) -> Split:
    images = torch.empty(len(files), *files.shape, dtype=torch.uint8)
    for index, read in prefetch((i, files.begin(i)) for i in torch.arange(len(files)).split(BATCH)):
        images[index] = read()
    return Split(images, files.labels)


def _split(folder: Path, size: int) -> tuple[tuple[str, ...], Files, Files, int]:
    """Names of the classes, the files for training and testing, and every which image is held out for the latter."""
    classes, train, test = listings(folder)
    own, other = (Files(part.places, part.labels, size) for part in (train, test))
    return classes, own, other, held_out_in(folder)


def listings(folder: Path) -> Listings:
    """The classes in a folder, and where its images for training and testing are."""
    if (folder / shards.INDEX).is_file():
        return shards.read_index(folder / shards.INDEX)
    if ilsvrc.is_here(folder):
        return ilsvrc.listings(folder)
    train, test = split(folder, SUFFIXES, "images")
    return tuple(train), _listing(train), _listing(test)


def held_out_in(folder: Path) -> int:
    """Every which image of those in `folder` is for testing; 0 where the split was given."""
    if (folder / shards.INDEX).is_file():
        return shards.held_out(folder / shards.INDEX)
    return 0 if ilsvrc.is_here(folder) else held_out(folder)


def _listing(classes: Classes) -> Listing:
    places, labels = flat(classes)
    return Listing(places, torch.tensor(labels))
