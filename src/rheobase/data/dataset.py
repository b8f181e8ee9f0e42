"""What a data set is: labelled images or event sequences, split into training and test."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """uint8 images [N, C, H, W] or sequences [N, T, C, H, W], and their labels [N]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """`mean` and `std` have one value per channel, in the units of the images (0 to 255)."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        return self.train.images.shape[-3]

    @property
    def size(self) -> int:
        return self.train.images.shape[-1]


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 images [N, C, H, W]."""
    values = images.movedim(1, 0).flatten(1)
    counts = [row.bincount(minlength=256).double() for row in values]  # exact, and small for any number of images
    levels = counts[0].new_tensor(range(256))
    means = [float((c * levels).sum() / c.sum()) for c in counts]
    variances = [float((c * (levels - m) ** 2).sum() / c.sum()) for c, m in zip(counts, means, strict=True)]
    return tuple(means), tuple(v**0.5 for v in variances)
