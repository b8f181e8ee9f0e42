"""Images of your own: a folder with one sub-folder per class, or with `train` and `val` folders of that form.

Small sets are decoded once and kept (`load`); large ones are decoded batch by batch (`load_large`).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from rheobase.data.dataset import Dataset, Split, channel_moments

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
HELD_OUT = 5  # without a `val` folder every fifth image of a class is for testing
LIMIT = 16 * 2**30


@dataclass(frozen=True)
class Files:
    """A split whose images are decoded when a batch asks for them, to 3 channels of `size` x `size`.

    Of a test image the centre counts, smaller than its shorter side by the factor `margin`.
    """

    paths: Sequence[Path]
    labels: Tensor
    size: int
    margin: float = 256 / 224

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        return 3, self.size, self.size

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        """Random parts of the images, or their centres."""
        decode = partial(_decode, _pillow(), self.size, self.margin)
        rows = [None] * len(index) if u is None else u[:, [0, 1, 8, 9]].tolist()
        with ThreadPoolExecutor() as threads:
            return torch.stack(list(threads.map(decode, [self.paths[i] for i in index.tolist()], rows)))

    def to(self, device: torch.device) -> "Files":
        return self


def load(folder: Path, size: int) -> Dataset:
    """All images, resized to `size`, in memory; normalisation follows from the training images."""
    large = load_large(folder, size)
    assert isinstance(large.train, Files)
    assert isinstance(large.test, Files)
    needed = (len(large.train) + len(large.test)) * 3 * size**2
    if needed > LIMIT:
        raise ValueError(
            f"the images in {folder} take {needed / 2**30:.0f} GiB at size {size}; use --set data=imagenet"
        )
    train, test = (
        Split(replace(s, margin=1.0).read(torch.arange(len(s))), s.labels) for s in (large.train, large.test)
    )
    mean, std = channel_moments(train.images)
    return Dataset("folder", train, test, large.classes, mean, std)


def load_large(folder: Path, size: int) -> Dataset:
    """Images decoded batch by batch, normalised as usual for ImageNet."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give one with a sub-folder of images per class")
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        train, test = _list(folder / "train"), _list(folder / "val")
        if train.keys() != test.keys():
            different = ", ".join(sorted(train.keys() ^ test.keys())[:5])
            raise ValueError(f"train and val in {folder} have different classes: {different}")
    else:
        files = _list(folder)
        train = {name: [p for i, p in enumerate(paths, 1) if i % HELD_OUT] for name, paths in files.items()}
        test = {name: paths[HELD_OUT - 1 :: HELD_OUT] for name, paths in files.items()}
        if not any(test.values()):
            raise ValueError(f"{folder} needs at least {HELD_OUT} images in a class, or folders train and val")
    return Dataset("imagenet", _files(train, size), _files(test, size), tuple(train), IMAGENET_MEAN, IMAGENET_STD)


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


def _decode(pillow: ModuleType, size: int, margin: float, path: Path, u: list[float] | None) -> Tensor:
    try:
        with pillow.open(path) as image:
            image.draft("RGB", (size, size))  # a large JPEG is decoded at a fraction of its size
            picture = image.convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"cannot read the image {path}: {error}") from None
    width, height = picture.size
    box = _centre(width, height, margin) if u is None else _random_part(width, height, *u)
    pixels = np.array(picture.resize((size, size), pillow.Resampling.BILINEAR, box=box))
    return torch.from_numpy(pixels).movedim(2, 0)


def _centre(width: int, height: int, margin: float) -> tuple[float, float, float, float]:
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_part(
    width: int, height: int, y: float, x: float, area: float, aspect: float
) -> tuple[float, float, float, float]:
    """8 % to 100 % of the area, 3/4 to 4/3 as wide as high, anywhere; what would not fit is made to."""
    pixels = width * height * (0.08 + 0.92 * area)
    ratio = (3 / 4) ** (1 - 2 * aspect)
    w, h = min((pixels * ratio) ** 0.5, width), min((pixels / ratio) ** 0.5, height)
    left, top = x * (width - w), y * (height - h)
    return left, top, left + w, top + h


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("reading images needs the package pillow; install rheobase[images]") from None
    return Image
