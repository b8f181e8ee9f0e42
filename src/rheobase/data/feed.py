"""Batches for training and testing: on the device, augmented there, the same whatever the number of processes.

Order and augmentation of an epoch follow from seed and epoch alone, so a run can continue anywhere, exactly.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rheobase.data.augment import COLUMNS, crop_flip, cutout, shift_in_time
from rheobase.data.dataset import Dataset, Split
from rheobase.data.policy import trivial_augment
from rheobase.recipes import Recipe

TEST_BATCH = 256
PIECE = 2**24  # values that are augmented at once: a few large operations instead of many small ones
Batch = TypeVar("Batch")


def generator(*key: int) -> torch.Generator:
    """A random generator on the CPU for that key; similar keys give unrelated numbers."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))


class Feed:
    """Batches of process `rank` of `world`: every process takes its share of the same global batch."""

    def __init__(
        self, dataset: Dataset, recipe: Recipe, device: torch.device, dtype: torch.dtype, rank: int = 0, world: int = 1
    ) -> None:
        if len(dataset.train) < world or recipe.batch_size < world:
            raise ValueError(
                f"{world} processes need at least as many images in a batch: the data set has {len(dataset.train)}, "
                f"a batch {recipe.batch_size}"
            )
        if recipe.policy != "none" and (len(dataset.train.shape) != 3 or dataset.channels not in (1, 3)):
            raise ValueError(f"policy '{recipe.policy}' needs images of one or three channels; use policy=none")
        self.recipe, self.device, self.dtype = recipe, device, dtype
        self.rank, self.world = rank, world
        self.train, self.test = dataset.train.to(device), dataset.test.to(device)
        self.mean, self.std = (
            torch.tensor(v, dtype=dtype, device=device).view(-1, 1, 1) for v in (dataset.mean, dataset.std)
        )
        full, rest = divmod(len(dataset.train), recipe.batch_size)
        # A last, smaller batch is used where every process gets at least two images of it: statistics need them.
        self.steps = full + (rest >= 2 * world or full == 0)
        values = math.prod(dataset.train.shape) * recipe.batch_size // world
        self.piece = max(1, PIECE // values) if isinstance(self.train, Split) else 1  # in steps

    def training(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Images, labels and this process's weight in the mean loss (1 on average), from step `first` of the epoch."""
        return self._ready(self._training(epoch, first))

    def testing(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test images, and their labels."""
        return self._ready(self._testing())

    def _training(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor, float]]:
        n, size = len(self.train), self.recipe.batch_size
        where = self.train.labels.device
        random = generator(self.recipe.seed, epoch)
        order = torch.randperm(n, generator=random)
        uniform = torch.rand(n, COLUMNS, generator=random)
        if self.recipe.alternate_flip:
            turn = torch.randint(2, (n,), generator=generator(self.recipe.seed, 0, 1)) + epoch
            uniform[:, 2] = 0.5 * (turn[order] % 2)
        order, uniform = order.to(where), uniform.to(where)
        # Pieces begin at the same steps however an epoch is entered, so that it continues bit for bit.
        for piece in range(first - first % self.piece, self.steps, self.piece):
            batches = [(step * size, min((step + 1) * size, n)) for step in range(piece, self.steps)[: self.piece]]
            indices = [order[self._share(*batch)] for batch in batches]
            index, u = torch.cat(indices), torch.cat([uniform[self._share(*batch)] for batch in batches])
            images = self.train.read(index, u).to(self.device, non_blocking=True)
            images = self._augmented(images, u.to(self.device), self.recipe.timesteps_at(epoch))
            labels = self.train.labels[index].to(self.device)
            counts = [len(i) for i in indices]
            parts = zip(images.split(counts, images.ndim - 4), labels.split(counts), batches, strict=True)
            for step, (x, y, (start, stop)) in enumerate(parts, piece):
                if step >= first:
                    yield x, y, len(y) * self.world / (stop - start)

    def _testing(self) -> Iterator[tuple[Tensor, Tensor]]:
        own = self._share(0, len(self.test))
        for index in torch.arange(own.start, own.stop, device=self.test.labels.device).split(TEST_BATCH):
            images = self._steps_first(self.test.read(index).to(self.device), self.recipe.timesteps)
            yield self._normalised(images), self.test.labels[index].to(self.device)

    def _ready(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Read one batch ahead, unless all are at hand."""
        if isinstance(self.train, Split):
            yield from batches
            return
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(next, batches, None)
            while (batch := coming.result()) is not None:
                coming = reader.submit(next, batches, None)
                yield batch

    def _share(self, start: int, stop: int) -> slice:
        n = stop - start
        return slice(start + n * self.rank // self.world, start + n * (self.rank + 1) // self.world)

    def _augmented(self, images: Tensor, u: Tensor, timesteps: int) -> Tensor:
        recipe = self.recipe
        images = self._steps_first(images, timesteps)
        if recipe.time_jitter and images.ndim == 5:
            images = shift_in_time(images, u[:, 8:9], steps=recipe.time_jitter)
        if recipe.padding or recipe.flip:
            images = crop_flip(images, u[:, :3], padding=recipe.padding, flip=recipe.flip)
        if recipe.policy == "trivial":
            images = trivial_augment(images.to(self.dtype), u[:, 5:8])
        images = self._normalised(images)
        return cutout(images, u[:, 3:5], size=recipe.cutout) if recipe.cutout else images

    def _normalised(self, images: Tensor) -> Tensor:
        return (images.to(self.dtype) - self.mean) / self.std

    def _steps_first(self, images: Tensor, timesteps: int) -> Tensor:
        return images if images.ndim == 4 else images[:, :timesteps].movedim(1, 0)
