"""What a data set is: labelled images or event sequences, split into training and test."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

AHEAD = 2  # batches of files that are decoded while one is used

Item = TypeVar("Item")


class Source(Protocol):
    """uint8 images [N, C, H, W] or sequences [N, T, C, H, W], and their labels [N]."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image or sequence."""

    def __len__(self) -> int: ...

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        """The images of that index; the uniform numbers of `augment` are there for those who cut out random parts."""

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        """Start to read, where that takes long; the result waits for the images, which may be asked to be pinned."""

    def to(self, device: torch.device) -> "Source":
        """On that device, if they can be kept there."""


@dataclass(frozen=True)
class Split:
    """A source in memory."""

    images: Tensor
    labels: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        return self.images[index]

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        return lambda: self.images[index]

    def to(self, device: torch.device) -> "Split":
        if device.type == "cuda" and self.images.nbytes > torch.cuda.mem_get_info(device)[0] / 2:
            return self
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """`mean` and `std` have one value per channel, in the units of the images (0 to 255)."""

    name: str
    train: Source
    test: Source
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        return self.train.shape[-3]

    @property
    def size(self) -> int:
        return self.train.shape[-1]


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 images [N, C, H, W]; 1 for one that never changes."""
    values = images.movedim(1, 0).flatten(1)
    counts = [row.bincount(minlength=256).double() for row in values]  # exact, and small for any number of images
    levels = counts[0].new_tensor(range(256))
    means = [float((c * levels).sum() / c.sum()) for c in counts]
    variances = [float((c * (levels - m) ** 2).sum() / c.sum()) for c, m in zip(counts, means, strict=True)]
    return tuple(means), tuple(v**0.5 or 1.0 for v in variances)


def ahead(items: Iterable[Item], number: int = AHEAD) -> Iterator[Item]:
    """The same items, each taken so many before it is needed.

    Only the decoding of files happens elsewhere meanwhile: work on a GPU in other threads would spoil a capture.
    """
    waiting: deque[Item] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > number:
            yield waiting.popleft()
    yield from waiting
