"""What data sets of event recordings share: how they are sliced, and what is reported of them."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rheobase.data import cache
from rheobase.data.dataset import Dataset, Split
from rheobase.data.events import Events, read, slices


@dataclass(frozen=True)
class Slicing:
    """How a recording becomes frames; see `events.slices`. Times are in microseconds, frames are square."""

    window: int
    timesteps: int
    size: int
    offset: int = 0
    binary: bool = False

    def changed(self, **options: int | bool) -> "Slicing":
        """With these options, where they are not zero."""
        if unknown := options.keys() - asdict(self).keys():
            raise ValueError(f"no option {min(unknown)} for slices; choose from {', '.join(asdict(self))}")
        return Slicing(**{**asdict(self), **{name: value for name, value in options.items() if value}})


@dataclass(frozen=True)
class EventDataset(Dataset):
    """Frames of recordings. Counts enter a network as they are: mean 0, standard deviation 1."""

    slicing: Slicing
    train_rates: list[float]
    """Events per second of every recording."""
    test_rates: list[float]
    skipped: dict[str, int]
    clipped: int


def build(
    name: str,
    classes: Sequence[str],
    labels: Sequence[int],
    is_test: Sequence[bool],
    slicing: Slicing,
    jobs: Sequence[Callable[[], cache.Made]],
    *,
    files: Iterable[Path] = (),
    parameters: dict[str, float | str] | None = None,
) -> EventDataset:
    """The data set of the recordings that the jobs make in the order of `labels`."""
    if not any(is_test) or all(is_test):
        raise ValueError(f"{name}: all {len(labels)} recordings are on one side of the split; is the set complete?")
    shape = (len(labels), slicing.timesteps, 2, slicing.size, slicing.size)
    found = cache.prepared(name, shape, {**asdict(slicing), **(parameters or {})}, files, jobs)
    if found.skipped:
        problems = ", ".join(f"{kind} {count}" for kind, count in sorted(found.skipped.items()))
        warnings.warn(f"{name}: there is damage in its files ({problems}); the rest is used", stacklevel=2)
    rates = [n / s if s else 0.0 for n, s in zip(found.events, found.seconds, strict=True)]
    test = torch.tensor(is_test)
    numbers = torch.tensor(labels)
    return EventDataset(
        name=name,
        train=_split(found, numbers, ~test),
        test=_split(found, numbers, test),
        classes=tuple(classes),
        mean=(0.0, 0.0),
        std=(1.0, 1.0),
        slicing=slicing,
        train_rates=[r for r, t in zip(rates, is_test, strict=True) if not t],
        test_rates=[r for r, t in zip(rates, is_test, strict=True) if t],
        skipped=found.skipped,
        clipped=found.clipped,
    )


def _split(found: cache.Prepared, labels: torch.Tensor, chosen: torch.Tensor) -> Split:
    """Of recordings in a row a view of the mapped file; of scattered ones a copy in memory."""
    index = chosen.nonzero().flatten()
    if len(index) and int(index[-1] - index[0]) + 1 == len(index):
        return Split(found.frames[index[0] : index[-1] + 1], labels[index])
    return Split(found.frames[index], labels[index])


def made(recordings: Sequence[Events], slicing: Slicing, starts: Sequence[int | None] | None = None) -> cache.Made:
    """Frames of recordings, from the given times on."""
    frames = np.empty((len(recordings), slicing.timesteps, 2, slicing.size, slicing.size), np.uint8)
    clipped = 0
    for i, events in enumerate(recordings):
        counts = slices(
            events,
            window=slicing.window,
            timesteps=slicing.timesteps,
            size=(slicing.size, slicing.size),
            start=starts[i] if starts else None,
            offset=slicing.offset,
            binary=slicing.binary,
        )
        clipped += int((counts > 255).sum())
        frames[i] = np.minimum(counts, 255)
    numbers, skipped = [len(e) for e in recordings], Counter[str]()
    for e in recordings:
        skipped.update(e.skipped)
    seconds = [float(e.t[-1] - e.t[0]) / 1e6 if len(e) else 0.0 for e in recordings]
    return cache.Made(frames, numbers, seconds, dict(skipped), clipped)


def from_file(path: Path, slicing: Slicing) -> cache.Made:
    """The one recording in a file, without what is damaged in it."""
    return made([read(path, on_error="skip")], slicing)


def jobs_of_files(paths: Iterable[Path], slicing: Slicing) -> list[Callable[[], cache.Made]]:
    return [partial(from_file, path, slicing) for path in paths]
