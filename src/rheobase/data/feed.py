"""Batches for training and testing, augmented on the device. They do not depend on the number of processes.

The order and augmentation of an epoch depend only on seed and epoch, so a run can resume exactly at any step.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rheobase.data.augment import COLUMNS, crop_flip, cutout, shift_in_time
from rheobase.data.dataset import PREFETCH, Dataset, Source, Split, prefetch
from rheobase.data.policy import trivial_augment
from rheobase.recipes import Recipe

TEST_BATCH = 256
PIECE = 2**24  # values to augment at once: a few large operations instead of many small ones

Range = tuple[int, int]
Images = Callable[[], Tensor]


def generator(*key: int) -> torch.Generator:
    """Return a random generator on the CPU for this key. Similar keys give unrelated numbers."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))


def preprocessed(
    dataset: Dataset, recipe: Recipe, source: Source, index: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return images of a source as the network sees them in evaluation, and their labels, on the CPU."""
    few = replace(dataset, test=Split(source.read(index), source.labels[index]))
    batches = list(Feed(few, recipe, torch.device("cpu"), dtype).testing())
    images = torch.cat([x for x, _ in batches], dim=batches[0][0].ndim - 4)
    return images, torch.cat([labels for _, labels in batches])


def first_images(dataset: Dataset, recipe: Recipe, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the first test images as the network sees them, and their labels.

    Where the files are sorted by class, these are the first of every class, then the second of every class, and so on.
    """
    return preprocessed(dataset, recipe, dataset.test, _in_turn(dataset.test.labels.long())[:count], dtype)


def _in_turn(labels: Tensor) -> Tensor:
    """Return an order that takes classes in turn if `labels` are sorted, and changes nothing otherwise."""
    order = torch.arange(len(labels))
    if (labels[1:] < labels[:-1]).any():
        return order
    counts = labels.bincount()
    number_in_class = order - (counts.cumsum(0) - counts)[labels]
    return number_in_class.argsort(stable=True)


class Feed:
    """The batches of process `rank` of `world`. Every process takes its share of the same global batch.

    During tests, `tell` hears after every batch how many images of how many are done.
    """

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        device: torch.device,
        dtype: torch.dtype,
        rank: int = 0,
        world: int = 1,
        *,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        if len(dataset.train) < world or recipe.batch_size < world:
            raise ValueError(
                f"{world} processes need at least as many images in a batch: the dataset has {len(dataset.train)}, "
                f"a batch {recipe.batch_size}; use fewer processes or a larger batch_size"
            )
        if recipe.policy != "none" and (len(dataset.train.shape) != 3 or dataset.info.channels not in (1, 3)):
            raise ValueError(f"policy '{recipe.policy}' needs images with one or three channels; use policy=none")
        if recipe.cutout > dataset.info.size:
            raise ValueError(
                f"cutout: expected at most the side of the images, {dataset.info.size}, got {recipe.cutout}"
            )
        self.recipe, self.device, self.dtype = recipe, device, dtype
        self.rank, self.world, self.tell = rank, world, tell
        self.train, self.test = dataset.train.to(device), dataset.test.to(device)
        self.info = info = dataset.info
        self.mean, self.std = (
            torch.tensor(v, dtype=dtype, device=device).view(-1, 1, 1) for v in (info.mean, info.std)
        )
        self.normalises = any(info.mean) or {*info.std} != {1.0}
        self.full, self.rest = divmod(len(dataset.train), recipe.batch_size)
        # A smaller last batch is used only if every process gets at least two images, which statistics need.
        self.steps = self.full + (self.rest >= 2 * world or self.full == 0)
        values = math.prod(dataset.train.shape) * recipe.batch_size // world
        at_hand = isinstance(self.train, Split)
        self.piece = max(1, PIECE // values) if at_hand else 1  # number of steps
        self.prefetch = 0 if at_hand else PREFETCH
        self.pinned = device.type == "cuda"

    def keep_steps(self, steps: int, owner: object) -> None:
        """Use as many steps per epoch as the run `owner` did, perhaps with another number of processes."""
        if steps == self.full + 1 and steps != self.steps and 0 < self.rest < self.world:
            raise ValueError(
                f"{owner} ends its epochs with a batch of {self.rest}, too few for {self.world} processes; "
                f"resume it with at most {self.rest} processes"
            )
        if steps not in (self.steps, self.full, self.full + (self.rest > 0)):
            raise ValueError(
                f"{owner} took {steps} steps per epoch, here it would take {self.steps}; "
                "resume it with the data that it started with"
            )
        self.steps = steps

    def training(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield images, labels and their share of the global batch, from step `first` of the epoch."""
        for step, batches, index, u, images in prefetch(self._pieces(epoch, first), self.prefetch):
            x = images().to(self.device, non_blocking=True)
            x = self._augmented(x, u.to(self.device), self.recipe.timesteps_at(epoch))
            y = self.train.labels[index].to(self.device)
            counts = [own.stop - own.start for own in (self._share(*batch) for batch in batches)]
            parts = zip(batches, x.split(counts, x.ndim - 4), y.split(counts), strict=True)
            for (start, stop), images_of_step, labels in list(parts)[max(0, first - step) :]:
                yield images_of_step, labels, len(labels) / (stop - start)

    def blank(self, timesteps: int) -> Tensor:
        """Return images of zeros, as many as this process gets in the first step of an epoch."""
        own = self._share(0, min(self.recipe.batch_size, len(self.train)))
        images = torch.zeros(own.stop - own.start, *self.train.shape, dtype=self.dtype, device=self.device)
        return self._steps_first(images, timesteps)

    def testing(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of the test images, and their labels."""
        own = self._share(0, len(self.test))
        if own.start == own.stop:
            return
        done, indices = 0, torch.arange(own.start, own.stop, device=self.test.labels.device).split(TEST_BATCH)
        for index, images in prefetch(((i, self.test.begin(i, pinned=self.pinned)) for i in indices), self.prefetch):
            x = self._steps_first(images().to(self.device, non_blocking=True), self.recipe.timesteps)
            yield self._normalised(x), self.test.labels[index].to(self.device)
            done += len(index)
            if self.tell is not None:
                self.tell(done, own.stop - own.start)

    def _pieces(self, epoch: int, first: int) -> Iterator[tuple[int, list[Range], Tensor, Tensor, Images]]:
        """Yield pieces from step `first` on: first step, batches, order, random numbers and images of each piece."""
        n, size = len(self.train), self.recipe.batch_size
        where = self.train.labels.device
        random = generator(self.recipe.seed, epoch)
        order = torch.randperm(n, generator=random)
        uniform = torch.rand(n, COLUMNS, generator=random)
        if self.recipe.alternate_flip:
            turn = torch.randint(2, (n,), generator=generator(self.recipe.seed, 0, 1)) + epoch
            uniform[:, 2] = 0.5 * (turn[order] % 2)
        order, uniform = order.to(where), uniform.to(where)
        # Pieces begin at the same steps wherever an epoch is resumed, so that the results are the same bit for bit.
        for piece in range(first - first % self.piece, self.steps, self.piece):
            batches = [(step * size, min((step + 1) * size, n)) for step in range(piece, self.steps)[: self.piece]]
            index, u = (torch.cat([values[self._share(*batch)] for batch in batches]) for values in (order, uniform))
            yield piece, batches, index, u, self.train.begin(index, u, pinned=self.pinned)

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
        images = images.to(self.dtype)
        return (images - self.mean) / self.std if self.normalises else images

    def _steps_first(self, images: Tensor, timesteps: int) -> Tensor:
        return images if images.ndim == 4 else images[:, :timesteps].movedim(1, 0)
