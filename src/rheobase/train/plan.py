"""Predict what training takes: memory, without a GPU, and time, from a few steps on this machine.

To predict memory, the step runs on fake tensors, which have shapes but no content, and all allocations are counted.
Memory that no tensor shows is a round number: `WORKSPACE` for convolutions, `RESERVED_GIB` for CUDA itself.
"""

import copy
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rheobase.data import DataInfo, expected
from rheobase.recipes import Recipe
from rheobase.train.capture import capture
from rheobase.train.freezing import freeze, train_mode
from rheobase.train.gradients import Gradients
from rheobase.train.optimizers import make_optimizer
from rheobase.train.runs import channels_last, network_for
from rheobase.train.step import DTYPES, for_device, make_step
from rheobase.train.switches import cudnn_for

RESERVED_GIB = 1.0  # of a GPU's memory, for CUDA itself and gaps between allocations
WORKSPACE = 240 * 2**20  # of cuDNN and cuBLAS: steps took 50 to 360 MiB on an H200
CPU = torch.device("cpu")
BLOCK = 512  # bytes; the CUDA allocator rounds up to multiples of this
TIMED_SECONDS = 1.0  # duration of the timed step on a CPU, which sets its number of images
TIMED_IMAGES = 16  # better so many: with fewer, convolutions take longer per image (`kernels.winograd`)
LONGEST = 20  # times the seconds, that these may take
TIMED_TIMESTEPS = 32  # at most on a CPU: the time of a step is proportional to them
TIMED_STEPS = 5  # on a GPU


def peak_bytes(recipe: Recipe, batch: int, data: DataInfo | None = None, *, grouped: bool = False) -> int:
    """Return the peak memory of a training step of `batch` images on one GPU. If `grouped`, it is one of several.

    `data` is the record of the dataset. The default is what is known about the recipe's dataset without its files.
    """
    return tensor_bytes(recipe, batch, data, grouped=grouped) + WORKSPACE


def tensor_bytes(recipe: Recipe, batch: int, data: DataInfo | None = None, *, grouped: bool = False) -> int:
    """Return the part of `peak_bytes` that tensors take."""
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
        summed = _collected(network) if grouped else nullcontext
        step = make_step(network, optimizer, scaler, recipe, recipe.timesteps, average, summed=summed)
        images = torch.empty(shape, dtype=dtype)
        labels = torch.empty(batch, dtype=torch.long)
        step(images, labels)  # creates the optimiser's state
        storages.peak = 0
        step(images, labels)
    return storages.peak


def largest_batch(recipe: Recipe, memory_bytes: int, data: DataInfo | None = None, *, grouped: bool = False) -> int:
    """Return the largest batch whose peak fits into the memory of a GPU; 0 if not even two images fit."""
    few, batch = 2, 64
    at_few = peak_bytes(recipe, few, data, grouped=grouped)
    for _ in range(4):  # memory is almost, but not quite, linear in the batch
        per_image = (peak_bytes(recipe, batch, data, grouped=grouped) - at_few) / (batch - few)
        better = int(few + (memory_bytes - at_few) / per_image)
        if better <= few or better == batch:
            break
        batch = better
    return better if better >= few else 0


def modes(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the recipe in every memory mode."""
    for memory in ("speed", "packed", "recompute"):
        yield replace(recipe, memory=memory)


@dataclass(frozen=True)
class Times:
    """Estimated seconds of training on this machine, without evaluation, files and other load."""

    step: float
    """One step of the whole batch, at the full number of timesteps."""
    epoch: float | None
    """None if the number of training images is not known."""
    recipe: float | None
    """All epochs, including those with fewer timesteps."""


def times(
    recipe: Recipe, data: DataInfo | None = None, device: torch.device = CPU, *, seconds: float = TIMED_SECONDS
) -> Times:
    """Return how long training `recipe` takes on `device`; see `step_seconds`."""
    known = data or expected(recipe.data, size=recipe.image_size, timesteps=recipe.timesteps)
    return over_epochs(recipe, known, lambda r: step_seconds(r, known, device, seconds=seconds))


def over_epochs(recipe: Recipe, data: DataInfo, step_of: Callable[[Recipe], float]) -> Times:
    """Return the time of all steps. `step_of` gives the time of one step for a recipe's batch and timesteps."""
    recipe = replace(recipe, batch_size=images_per_step(recipe, data))
    step = step_of(recipe)
    if not data.images:
        return Times(step, None, None)
    steps = data.images / recipe.batch_size
    short_epochs = min(recipe.short_epochs, recipe.epochs)
    whole = (recipe.epochs - short_epochs) * steps * step
    if short_epochs:
        short = replace(recipe, timesteps=recipe.short_timesteps, short_epochs=0)
        whole += short_epochs * steps * step_of(short)
    return Times(step, steps * step, whole)


def images_per_step(recipe: Recipe, data: DataInfo) -> int:
    """Return the number of images in a step. A small dataset is one batch."""
    return min(recipe.batch_size, data.images or recipe.batch_size)


def step_seconds(recipe: Recipe, data: DataInfo, device: torch.device, *, seconds: float = TIMED_SECONDS) -> float:
    """Measure the seconds of one training step of the recipe's batch on `device`, with noise as images.

    A GPU runs the captured step. On a CPU, a large batch may take minutes. So the step is timed with fewer images, at
    least two, that take about this many `seconds`, and scaled. Where few images take that long, there are more of them,
    because a step with few images takes longer per image. Many timesteps are scaled from `TIMED_TIMESTEPS`, too.
    """
    timesteps = timed_timesteps(recipe, device)
    if timesteps < recipe.timesteps:
        fewer = replace(recipe, timesteps=timesteps, short_epochs=0)
        return recipe.timesteps / timesteps * step_seconds(fewer, data, device, seconds=seconds)
    with torch.random.fork_rng(), cudnn_for(recipe):
        run = _timed_step(recipe, data, device)
        if device.type == "cuda":
            for _ in range(5):  # for autotuning and the capture
                run(recipe.batch_size)
            return sum(run(recipe.batch_size) for _ in range(TIMED_STEPS)) / TIMED_STEPS
        few = min(2, recipe.batch_size)
        run(few)
        per_image = run(few) / few
        images = max(few, min(recipe.batch_size, int(seconds / per_image)))
        enough = min(recipe.batch_size, TIMED_IMAGES)
        if images < enough and enough * per_image <= LONGEST * seconds:
            images = enough
            run(images)  # the first one prepares what later ones use
        return run(images) / images * recipe.batch_size


def timed_timesteps(recipe: Recipe, device: torch.device) -> int:
    """Return the timesteps of the step that is timed."""
    return recipe.timesteps if device.type == "cuda" else min(recipe.timesteps, TIMED_TIMESTEPS)


def duration(seconds: float) -> str:
    """Return a duration in words, with two digits."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s"


def _timed_step(recipe: Recipe, data: DataInfo, device: torch.device) -> Callable[[int], float]:
    """Return a function that runs one training step with a number of images of noise and returns its seconds."""
    recipe, dtype = for_device(recipe, device), DTYPES.get(recipe.precision, torch.float32)
    network = channels_last(network_for(recipe, data)).to(device, dtype)
    freeze(network, recipe)
    train_mode(network, recipe)
    average = copy.deepcopy(network) if recipe.average else None
    optimizer = make_optimizer(network, recipe, device)
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
    step = capture(make_step(network, optimizer, scaler, recipe, recipe.timesteps, average), device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def run(images: int) -> float:
        shape = (recipe.timesteps, images, *data.shape) if data.timesteps else (images, *data.shape)
        x, labels = torch.rand(shape, dtype=dtype, device=device), torch.zeros(images, dtype=torch.long, device=device)
        wait()
        began = time.monotonic()
        step(x, labels)
        wait()
        return time.monotonic() - began

    return run


def _collected(network: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Return a context that collects gradients as in a process group, but without other processes."""
    gradients = Gradients(network.parameters())

    @contextmanager
    def collected() -> Iterator[None]:
        yield
        gradients.collect()

    return collected


class _Storages(TorchDispatchMode):
    """Count the bytes of all live storages."""

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
