"""A dataset: labelled images or event sequences, split into training and test, and one record about them."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from rheobase.data.fingerprint import fingerprint as fingerprint_of
from rheobase.data.info import DataInfo

PREFETCH = 2  # batches of files to decode ahead
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Item = TypeVar("Item")


class Source(Protocol):
    """uint8 images [N, C, H, W] or sequences [N, T, C, H, W], and their labels [N]."""

    @property
    def labels(self) -> Tensor:
        """The class number of every image."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image or sequence."""

    def __len__(self) -> int: ...

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        """Return the images at `index`. Sources that crop at random use the uniform numbers `u` (see `augment`)."""

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        """Start reading. Call the result to wait for the images. `pinned` asks for page-locked memory."""

    def to(self, device: torch.device) -> "Source":
        """Move the images to a device, if they can be kept there."""

    def fingerprint(self) -> str:
        """Return a hash of labels and content; empty if unknown."""


@dataclass(frozen=True)
class Split:
    """A source in memory."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        x, y = self.images, self.labels
        if not isinstance(x, Tensor) or x.dtype != torch.uint8 or x.ndim not in (4, 5) or x.shape[-1] != x.shape[-2]:
            raise ValueError(
                f"expected square uint8 images [N, C, H, W] or sequences [N, T, C, H, W], got {_kind(x)}; "
                "resize or convert them first (torch.from_numpy turns an array into a tensor)"
            )
        if not isinstance(y, Tensor) or y.dtype not in INTEGERS or y.shape != x.shape[:1]:
            raise ValueError(f"expected whole numbers [{len(x)}] as labels, one per image, got {_kind(y)}")
        if y.dtype != torch.int64:
            object.__setattr__(self, "labels", y.long())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image or sequence."""
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        """Return the images at `index`."""
        return self.images[index]

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        """Return a function that picks the images, which are in memory already."""
        return lambda: self.images[index]

    def to(self, device: torch.device) -> "Split":
        """Move the images to a device, unless they would take more than half of its free memory."""
        if device.type == "cuda" and self.images.nbytes > torch.cuda.mem_get_info(device)[0] / 2:
            return self
        return Split(self.images.to(device), self.labels.to(device))

    def fingerprint(self) -> str:
        """Return a hash of all pixels and labels."""
        return fingerprint_of(self.images, self.labels)


@dataclass(frozen=True)
class Dataset:
    """Images for training and testing, and the record about them. Make one with `Dataset.of`."""

    info: DataInfo
    train: Source
    test: Source

    @staticmethod
    def of(
        name: str,
        train: Source,
        test: Source,
        classes: Sequence[str],
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        simulated: bool = False,
        held_out: int = 0,
        fingerprint: str | None = None,
    ) -> "Dataset":
        """Make a dataset and its record. Values that are not given are computed from the images.

        Without `mean` and `std`, images in memory are normalised per channel by the moments of the training images,
        and event counts of recordings are not normalised.
        """
        if train.shape != test.shape:
            raise ValueError(
                f"dataset '{name}': training images have the shape {list(train.shape)}, test images "
                f"{list(test.shape)}; make them equal"
            )
        if isinstance(classes, int):
            raise ValueError(f"dataset '{name}': expected the names of the classes, got {classes}; give one for each")
        for part, source in (("training", train), ("test", test)):
            _check_labels(source.labels, len(classes), f"dataset '{name}', {part} images")
        if twice := [name for name, count in Counter(classes).items() if count > 1]:
            raise ValueError(f"dataset '{name}': several classes have the name '{twice[0]}'; give each its own")
        if (mean is None) != (std is None):
            raise ValueError(f"dataset '{name}': give both mean and std, or neither")
        if mean is None or std is None:
            mean, std = _moments(name, train)
        try:
            info = DataInfo(
                name=name,
                classes=tuple(classes),
                channels=train.shape[-3],
                size=train.shape[-1],
                mean=tuple(map(float, mean)),
                std=tuple(map(float, std)),
                timesteps=train.shape[0] if len(train.shape) == 4 else 0,
                simulated=simulated,
                images=len(train),
                test_images=len(test),
                held_out=held_out,
                fingerprint=_joined(train, test) if fingerprint is None else fingerprint,
            )
        except ValueError as error:
            raise ValueError(f"dataset '{name}': {error}") from None
        return Dataset(info, train, test)


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 images [N, C, H, W]. A constant channel gets 1."""
    values = images.movedim(1, 0).flatten(1)
    counts = [row.bincount(minlength=256).double() for row in values]  # exact, and small whatever the number of images
    levels = counts[0].new_tensor(range(256))
    means = [float((c * levels).sum() / c.sum()) for c in counts]
    variances = [float((c * (levels - m) ** 2).sum() / c.sum()) for c, m in zip(counts, means, strict=True)]
    return tuple(means), tuple(v**0.5 or 1.0 for v in variances)


def prefetch(items: Iterable[Item], number: int = PREFETCH) -> Iterator[Item]:
    """Yield the same items, but fetch them `number` items ahead.

    Only files are decoded in the background: GPU work in other threads would break the capture of a CUDA graph.
    """
    waiting: deque[Item] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > number:
            yield waiting.popleft()
    yield from waiting


def _moments(name: str, train: Source) -> tuple[Sequence[float], Sequence[float]]:
    channels = train.shape[-3]
    if len(train.shape) == 4:
        return (0.0,) * channels, (1.0,) * channels
    if not isinstance(train, Split):
        raise ValueError(f"dataset '{name}': its images are not in memory; give their mean and std")
    return channel_moments(train.images)


def _joined(train: Source, test: Source) -> str:
    parts = train.fingerprint(), test.fingerprint()
    return fingerprint_of(*parts) if all(parts) else ""


def _check_labels(labels: Tensor, classes: int, what: str) -> None:
    if not len(labels):
        raise ValueError(f"{what}: there are none; give at least one")
    if labels.dtype not in INTEGERS:
        raise ValueError(f"{what}: expected whole numbers as labels, got {_kind(labels)}")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"{what}: labels from {lowest} to {highest} do not fit {classes} classes; expected 0 to K - 1")


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return repr(type(value).__name__)
