"""Images of your own: a folder with one sub-folder per class, or with `train` and `val` folders of that form.

Small sets are decoded once and kept (`load`); large ones are decoded batch by batch (`load_large`).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from rheobase.data.dataset import Dataset, Split, ahead, channel_moments
from rheobase.data.decoding import Request, decode, pillow
from rheobase.data.workers import Workers, choose

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
HELD_OUT = 5  # without a `val` folder every fifth image of a class is for testing
LIMIT = 16 * 2**30
BATCH = 256  # of images that are decoded to be kept


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
    workers: Workers | None = None
    """Who decodes; by default chosen by the number of files, when the first are needed."""
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
        pillow()  # missing, it is an error here and not elsewhere
        images = torch.empty(len(index), self.size, self.size, 3, dtype=torch.uint8, pin_memory=pinned)
        wanted = index.tolist()
        parts = [None] * len(index) if u is None else u[:, [0, 1, 8, 9]].tolist()
        requests = [self._request(self.paths[i], part) for i, part in zip(wanted, parts, strict=True)]
        failed = (self.workers or choose(len(self))).begin(requests, images.numpy())

        def finish() -> Tensor:
            for row in failed():
                pixels = torch.frombuffer(self._decoded_here(wanted[row], parts[row]), dtype=torch.uint8)
                images[row] = pixels.view(images.shape[1:])
            return images.movedim(3, 1)

        return finish

    def _request(self, path: Path, part: list[float] | None) -> Request:
        return Request(str(path), self.size, self.margin, part)

    def _decoded_here(self, i: int, part: list[float] | None) -> bytearray:
        """Image `i`, or the one that takes its place; workers cannot tell which, nor damage from a missing file."""
        problems: dict[Path, str] = {}
        for path in self._of_the_class_from(i):
            try:
                pixels = decode(self._request(path, part))
            except Exception as error:  # damage makes decoders fail in many ways
                if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
                    raise  # the machine's fault, not the file's: another time it could be read
                problems[path] = str(error)
            else:
                self._tell(problems)
                return bytearray(pixels)
        path, problem = next(iter(problems.items()))
        others = f", nor {len(problems) - 1} others of its class" if len(problems) > 1 else ""
        raise ValueError(f"cannot read the image {path}{others}: {problem}")

    def _of_the_class_from(self, i: int) -> Iterator[Path]:
        yield self.paths[i]
        others = (self.labels == self.labels[i]).nonzero().flatten().tolist()
        at = others.index(i)
        yield from (self.paths[j] for j in others[at + 1 :] + others[:at])

    def _tell(self, problems: dict[Path, str]) -> None:
        for path, problem in problems.items():
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
    train, test = (_decoded(replace(split, margin=1.0)) for split in (large.train, large.test))
    mean, std = channel_moments(train.images)
    return Dataset("folder", train, test, large.classes, mean, std)


def _decoded(files: Files) -> Split:
    images = torch.empty(len(files), *files.shape, dtype=torch.uint8)
    for index, read in ahead((i, files.begin(i)) for i in torch.arange(len(files)).split(BATCH)):
        images[index] = read()
    return Split(images, files.labels)


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
