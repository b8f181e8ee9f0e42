"""What data sets of event recordings share: how they are sliced, and what is reported of them."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rheobase.data import cache
from rheobase.data.dataset import Dataset, Split
from rheobase.data.events import Events, count_into, read
from rheobase.data.fingerprint import of_files


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
    """Damage in the files: kind of problem to number of times."""
    uncounted: int
    """Events beyond the 255 that a cell can count."""


def build(
    name: str,
    classes: Sequence[str],
    labels: Sequence[int],
    is_test: Sequence[bool],
    slicing: Slicing,
    jobs: Sequence[Callable[[], cache.Recordings]],
    *,
    files: Sequence[Path] = (),
    simulation: Mapping[str, float | str] | None = None,
) -> EventDataset:
    """The data set of the recordings that the jobs make in the order of `labels`.

    They come from these files, or from a simulation with these parameters.
    """
    if not any(is_test) or all(is_test):
        raise ValueError(f"{name}: all {len(labels)} recordings are on one side of the split; is the set complete?")
    shape = (len(labels), slicing.timesteps, 2, slicing.size, slicing.size)
    found = cache.prepared(name, shape, {**asdict(slicing), **(simulation or {})}, files, jobs)
    if found.skipped:
        problems = ", ".join(f"{kind} {count}" for kind, count in sorted(found.skipped.items()))
        warnings.warn(f"{name}: there is damage in its files ({problems}); the rest is used", stacklevel=2)
    rates = [n / s if s else 0.0 for n, s in zip(found.events, found.seconds, strict=True)]
    test = torch.tensor(is_test)
    numbers = torch.tensor(labels)
    fingerprint = of_files(files, labels, is_test, json.dumps(simulation, sort_keys=True))  # however it is sliced
    base = Dataset.of(
        name,
        _split(found, numbers, ~test),
        _split(found, numbers, test),
        classes,
        simulated=simulation is not None,
        fingerprint=fingerprint,
    )
    return EventDataset(
        base.info,
        base.train,
        base.test,
        slicing=slicing,
        train_rates=[r for r, t in zip(rates, is_test, strict=True) if not t],
        test_rates=[r for r, t in zip(rates, is_test, strict=True) if t],
        skipped=found.skipped,
        uncounted=found.uncounted,
    )


def _split(found: cache.Recordings, labels: torch.Tensor, chosen: torch.Tensor) -> Split:
    """Of recordings in a row a view of the mapped file; of scattered ones a copy in memory."""
    index = chosen.nonzero().flatten()
    if len(index) and int(index[-1] - index[0]) + 1 == len(index):
        return Split(found.frames[index[0] : index[-1] + 1], labels[index])
    return Split(found.frames[index], labels[index])


def sliced(
    recordings: Sequence[Events], slicing: Slicing, starts: Sequence[int | None] | None = None
) -> cache.Recordings:
    """Frames of recordings, from the given times on."""
    frames = np.empty((len(recordings), slicing.timesteps, 2, slicing.size, slicing.size), np.uint8)
    uncounted, skipped = 0, Counter[str]()
    for own, events, start in zip(frames, recordings, starts or [None] * len(recordings), strict=True):
        uncounted += count_into(own, events, window=slicing.window, start=start, offset=slicing.offset)
        skipped.update(events.skipped)
    if slicing.binary:
        np.minimum(frames, 1, out=frames)
        uncounted = 0
    numbers = [len(e) for e in recordings]
    seconds = [float(e.t[-1] - e.t[0]) / 1e6 if len(e) else 0.0 for e in recordings]
    return cache.Recordings(torch.from_numpy(frames), numbers, seconds, dict(skipped), uncounted)


def from_file(path: Path, slicing: Slicing) -> cache.Recordings:
    """The one recording in a file, without what is damaged in it."""
    return sliced([read(path, on_error="skip")], slicing)


def jobs_of_files(paths: Iterable[Path], slicing: Slicing) -> list[Callable[[], cache.Recordings]]:
    return [partial(from_file, path, slicing) for path in paths]
