"""Images of your own: a folder with one sub-folder per class, or with `train` and `val` folders of that form.

Small sets are decoded once and kept (`load`); large ones are decoded batch by batch (`load_large`).
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rheobase.data.dataset import Dataset, Split, channel_moments

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
HELD_OUT = 5  # without a `val` folder every fifth image of a class is for testing
LIMIT = 16 * 2**30

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Files:
    """A split whose images are decoded when a batch asks for them, to 3 channels of `size` x `size`.

    Of a test image the centre counts, smaller than its shorter side by the factor `margin`. A file that cannot be
    decoded is replaced by the next one of its class, always the same.
    """

    paths: Sequence[Path]
    labels: Tensor
    size: int
    margin: float = 256 / 224
    damaged: set[Path] = field(default_factory=set, init=False)
    """Files that were replaced."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        return 3, self.size, self.size

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        """Random parts of the images, or their centres."""
        return self.begin(index, u)()

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        _pillow()  # missing, it is an error here and not in a thread
        images = torch.empty(len(index), self.size, self.size, 3, dtype=torch.uint8, pin_memory=pinned)
        parts = [None] * len(index) if u is None else u[:, [0, 1, 8, 9]].tolist()
        tasks = [
            _threads().submit(self.decode, i, part, pixels)
            for i, part, pixels in zip(index.tolist(), parts, images.numpy(), strict=True)
        ]

        def finish() -> Tensor:
            for task in tasks:
                self._tell(task.result())
            return images.movedim(3, 1)

        return finish

    def decode(self, i: int, part: list[float] | None, pixels: NDArray[np.uint8]) -> dict[Path, str]:
        """Write image `i` to `pixels` [H, W, 3]; the result names the damaged files that it stands in for."""
        damaged: dict[Path, str] = {}
        for path in self._of_the_class_from(i):
            try:
                pixels[:] = _picture(path, self.size, self.margin, part)
                return damaged
            except Exception as error:  # damage makes decoders fail in many ways
                if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
                    raise  # the machine's fault, not the file's: another time it could be read
                damaged[path] = str(error)
        path, problem = next(iter(damaged.items()))
        others = f", nor {len(damaged) - 1} others of its class" if len(damaged) > 1 else ""
        raise ValueError(f"cannot read the image {path}{others}: {problem}")

    def _of_the_class_from(self, i: int) -> Iterator[Path]:
        yield self.paths[i]
        others = (self.labels == self.labels[i]).nonzero().flatten().tolist()
        at = others.index(i)
        yield from (self.paths[j] for j in others[at + 1 :] + others[:at])

    def _tell(self, damaged: dict[Path, str]) -> None:
        for path, problem in damaged.items():
            if path not in self.damaged:
                self.damaged.add(path)
                warnings.warn(
                    f"cannot read the image {path}: {problem}; the next one of its class takes its place "
                    f"(damaged files so far: {len(self.damaged)})",
                    stacklevel=2,
                )

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


def _picture(path: Path, size: int, margin: float, part: list[float] | None) -> NDArray[np.uint8]:
    def box(width: int, height: int) -> Box:
        return _centre(width, height, margin) if part is None else _random_part(width, height, *part)

    pillow = _pillow()
    with pillow.open(path) as image:
        left, top, right, bottom = box(*image.size)
        scale = size / min(right - left, bottom - top)
        # of a large JPEG fewer pixels are decoded, where enough are left of the part
        image.draft("RGB", (ceil(image.width * scale), ceil(image.height * scale)))
        picture = image.convert("RGB")
    return np.asarray(picture.resize((size, size), pillow.Resampling.BILINEAR, box=box(*picture.size)))


def _centre(width: int, height: int, margin: float) -> Box:
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_part(width: int, height: int, y: float, x: float, area: float, aspect: float) -> Box:
    """8 % to 100 % of the area, 3/4 to 4/3 as wide as high, anywhere; what would not fit is made to."""
    pixels = width * height * (0.08 + 0.92 * area)
    ratio = (3 / 4) ** (1 - 2 * aspect)
    w, h = min((pixels * ratio) ** 0.5, width), min((pixels / ratio) ** 0.5, height)
    left, top = x * (width - w), y * (height - h)
    return left, top, left + w, top + h


@cache
def _threads() -> ThreadPoolExecutor:
    """As many as there are cores for this process: Pillow lets other threads run while it decodes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("reading images needs the package pillow; install rheobase[images]") from None
    return Image
