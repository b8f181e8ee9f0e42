"""Hold out training images for choosing settings, so that the test images stay unseen until the last run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rheobase.data.dataset import Dataset, Source, Split
from rheobase.data.fingerprint import fingerprint

ORDER = 5000  # seed of the selection, the same for every run


@dataclass(frozen=True)
class Chosen:
    """Some images of a source that reads them on demand."""

    source: Source
    index: Tensor

    @property
    def labels(self) -> Tensor:
        return self.source.labels[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.index)

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        return self.source.read(self.index[index], u)

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        return self.source.begin(self.index[index], u, pinned=pinned)

    def to(self, device: torch.device) -> "Chosen":
        source = self.source.to(device)
        return Chosen(source, self.index.to(source.labels.device))

    def fingerprint(self) -> str:
        return fingerprint(self.source.fingerprint(), self.index) if self.source.fingerprint() else ""


def hold_out(dataset: Dataset, number: int) -> Dataset:
    """Return the dataset with `number` of its training images as test images. The selection is always the same.

    The normalisation does not change.
    """
    if not 0 < number < len(dataset.train):
        raise ValueError(f"holdout: expected fewer than the {len(dataset.train)} training images, got {number}")
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(ORDER))
    held, kept = order[:number].sort().values, order[number:].sort().values
    info = replace(
        dataset.info,
        images=len(kept),
        test_images=number,
        held_out=0,
        holdout=number,
        fingerprint=fingerprint(dataset.info.fingerprint, str(number)) if dataset.info.fingerprint else "",
    )
    return replace(dataset, info=info, train=_choose(dataset.train, kept), test=_choose(dataset.train, held))


def _choose(source: Source, index: Tensor) -> Source:
    if isinstance(source, Split):
        return Split(source.images[index], source.labels[index])
    return Chosen(source, index)
