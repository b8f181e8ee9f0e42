"""Images of your own: a folder with one sub-folder per class, or with `train` and `val` folders of that form.

Small sets are decoded once and kept (`folder`); large ones are decoded batch by batch (`imagenet`).
"""

from dataclasses import replace
from pathlib import Path

import torch

from rheobase.data.dataset import Dataset, Split, prefetch
from rheobase.data.expectation import expecting
from rheobase.data.files import SUFFIXES, Files
from rheobase.plugins import dataset

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
HELD_OUT = 5  # without a `val` folder every fifth image of a class is for testing
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
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give one with a sub-folder of images per class")
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        train, test, held_out = _list(folder / "train"), _list(folder / "val"), 0
        if train.keys() != test.keys():
            different = ", ".join(sorted(train.keys() ^ test.keys())[:5])
            raise ValueError(f"train and val in {folder} have different classes: {different}")
    else:
        files, held_out = _list(folder), HELD_OUT
        train = {name: [p for i, p in enumerate(paths, 1) if i % HELD_OUT] for name, paths in files.items()}
        test = {name: paths[HELD_OUT - 1 :: HELD_OUT] for name, paths in files.items()}
        if not any(test.values()):
            raise ValueError(f"{folder} needs at least {HELD_OUT} images in a class, or folders train and val")
    return tuple(train), _files(train, size), _files(test, size), held_out


def _list(folder: Path) -> dict[str, list[Path]]:
    classes = {}
    for path in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        classes[path.name] = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        if not classes[path.name]:
            raise ValueError(f"{path} has no images; expected files like *.png or *.jpg")
    if not classes:
        raise ValueError(f"{folder} has no sub-folders; expected one with images for every class")
    return classes


def _files(classes: dict[str, list[Path]], size: int) -> Files:
    paths = [path for group in classes.values() for path in group]
    labels = [label for label, group in enumerate(classes.values()) for _ in group]
    return Files(paths, torch.tensor(labels), size)
