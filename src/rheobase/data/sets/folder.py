"""Images of your own: a folder with one sub-folder per class, or with `train` and `val` folders of that form.

Small sets are decoded once and kept (`folder`); large ones are decoded batch by batch (`imagenet`).
"""

from dataclasses import replace
from pathlib import Path

import torch

from rheobase.data.dataset import Dataset, Split, prefetch
from rheobase.data.expectation import expecting
from rheobase.data.files import SUFFIXES, Files
from rheobase.data.folders import Classes, flat, split
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
            "data set 'folder' needs a size for its images; give one, 32 for example (train: --set image_size=32)"
        )
    classes, train, test = _split(path, size)
    needed = (len(train) + len(test)) * 3 * size**2
    if needed > LIMIT:
        raise ValueError(f"the images in {path} take {needed / 2**30:.0f} GiB at size {size}; use --set data=imagenet")
    return Dataset.of("folder", _decoded(replace(train, margin=1.0)), _decoded(replace(test, margin=1.0)), classes)


@dataset
@expecting(classes=1000, channels=3, size=224)
def imagenet(path: Path, *, size: int = 224) -> Dataset:
    """Images decoded batch by batch, normalised as usual for ImageNet."""
    classes, train, test = _split(path, size)
    return Dataset.of("imagenet", train, test, classes, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _decoded(files: Files) -> Split:
    images = torch.empty(len(files), *files.shape, dtype=torch.uint8)
    for index, read in prefetch((i, files.begin(i)) for i in torch.arange(len(files)).split(BATCH)):
        images[index] = read()
    return Split(images, files.labels)


def _split(folder: Path, size: int) -> tuple[tuple[str, ...], Files, Files]:
    """Names of the classes, and the files for training and testing."""
    train, test = split(folder, SUFFIXES, "images")
    return tuple(train), _files(train, size), _files(test, size)


def _files(classes: Classes, size: int) -> Files:
    paths, labels = flat(classes)
    return Files(paths, torch.tensor(labels), size)
