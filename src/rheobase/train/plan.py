"""Memory of a training step, predicted without a GPU and without computing anything.

The step itself runs on fake tensors, which have shapes but no memory, while every storage that comes and goes is
counted. What no tensor shows is a round number: workspaces of convolutions here, CUDA itself in `RESERVED_GIB`.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rheobase.data import DataInfo, expected
from rheobase.recipes import Recipe
from rheobase.train.freezing import freeze, train_mode
from rheobase.train.optimizers import make_optimizer
from rheobase.train.runs import network_for
from rheobase.train.step import DTYPES, make_step

RESERVED_GIB = 1.0  # of a GPU's memory, for CUDA itself and gaps between allocations
WORKSPACE = 240 * 2**20  # of cuDNN and cuBLAS: steps were seen to take 50 to 360 MiB on an H200
CPU = torch.device("cpu")
BLOCK = 512  # the CUDA allocator hands out multiples of this


def peak_bytes(recipe: Recipe, batch: int, data: DataInfo | None = None) -> int:
    """The most memory that a training step of `batch` images takes at one time on one GPU.

    `data` is the record of the data set; without it, what is known of that of the recipe without its files.
    """
    return tensor_bytes(recipe, batch, data) + WORKSPACE


def tensor_bytes(recipe: Recipe, batch: int, data: DataInfo | None = None) -> int:
    """The part of `peak_bytes` that tensors take."""
    data = data or expected(recipe.data, size=recipe.image_size, timesteps=recipe.timesteps)
    shape = (recipe.timesteps, batch, *data.shape) if data.timesteps else (batch, *data.shape)
    dtype = DTYPES.get(recipe.precision, torch.float32)
    with FakeTensorMode(), _Storages() as storages:
        with _default_dtype(dtype):  # fake parameters cannot be converted afterwards
            network = network_for(recipe, data)
            average = network_for(recipe, data) if recipe.average else None
        freeze(network, recipe)
        train_mode(network, recipe)
        optimizer = make_optimizer(network, recipe, CPU)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        step = make_step(network, optimizer, scaler, recipe, recipe.timesteps, average)
        images = torch.empty(shape, dtype=dtype)
        labels = torch.empty(batch, dtype=torch.long)
        step(images, labels)  # makes the optimiser's state
        storages.peak = 0
        step(images, labels)
    return storages.peak


def largest_batch(recipe: Recipe, memory_bytes: int, data: DataInfo | None = None) -> int:
    """The largest batch whose peak fits; 0 if not even two images do."""
    few, batch = 2, 64
    at_few = peak_bytes(recipe, few, data)
    for _ in range(4):  # memory is nearly, not quite, proportional to the batch
        per_image = (peak_bytes(recipe, batch, data) - at_few) / (batch - few)
        better = int(few + (memory_bytes - at_few) / per_image)
        if better <= few or better == batch:
            break
        batch = better
    return better if better >= few else 0


def modes(recipe: Recipe) -> Iterator[Recipe]:
    """The recipe in every memory mode."""
    for memory in ("speed", "packed", "recompute"):
        yield replace(recipe, memory=memory)


class _Storages(TorchDispatchMode):
    """Counts the bytes of all storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.seen: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self.seen:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self.seen[storage] = None
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.live -= size


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
