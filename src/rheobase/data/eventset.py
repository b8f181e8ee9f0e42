"""Shared by all datasets of event recordings: how they are sliced, and what is reported about them."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from rheobase.data import cache
from rheobase.data.dataset import Dataset, Split
from rheobase.data.events import Events, count_into, read
from rheobase.data.events.slicing import SliceBy
from rheobase.data.events.stream import sensor_of
from rheobase.data.fingerprint import of_files
from rheobase.data.info import DataInfo

Option = int | bool | str


@dataclass(frozen=True)
class Slicing:
    """How a recording becomes frames; see `events.slices`.

    Frames are square. A sensor that is not square is centred in them, as large as fits, and keeps its proportions.
    """

    window: int
    """Microseconds per slice, or events if `slice_by` is `count`. 0: cut the whole recording into equal slices."""
    timesteps: int
    size: int
    offset: int = 0
    """Microseconds from the first event to the first slice."""
    binary: bool = False
    slice_by: SliceBy = "time"
    sensor: str = "none"
    """Sensor size, such as 346x260, for recordings that do not state it."""

    def __post_init__(self) -> None:
        numbers = {"window": 0, "timesteps": 1, "size": 1, "offset": 0}
        for name, least in numbers.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"slices: expected {name} to be a whole number of at least {least}, got {value!r}")
        if self.slice_by not in get_args(SliceBy):
            raise ValueError(
                f"slices: expected slice_by to be one of {', '.join(get_args(SliceBy))}, got '{self.slice_by}'"
            )
        sensor_of(self.sensor)

    def changed(self, **options: Option) -> "Slicing":
        """Return a copy with these options, ignoring zeros. A new `slice_by` resets the window, as its unit changes."""
        if unknown := options.keys() - asdict(self).keys():
            raise ValueError(f"no option {min(unknown)} for slices; choose from {', '.join(asdict(self))}")
        own: dict[str, Any] = asdict(self)
        if options.get("slice_by", self.slice_by) != self.slice_by:
            own["window"] = 0
        return Slicing(**{**own, **{name: value for name, value in options.items() if value}})

    def __str__(self) -> str:
        if not self.window:
            return f"{self.timesteps} slices of equal {'duration' if self.slice_by == 'time' else 'numbers of events'}"
        return f"{self.window} events per slice" if self.slice_by == "count" else f"{self.window / 1000:g} ms per slice"


@dataclass(frozen=True)
class EventDataset(Dataset):
    """Frames of recordings. Counts are not normalised: mean 0, standard deviation 1."""

    slicing: Slicing
    train_rates: list[float]
    """Events per second of every training recording."""
    test_rates: list[float]
    """The same for every test recording."""
    skipped: dict[str, int]
    """Damage in the files: how often each kind of problem occurred."""
    uncounted: int
    """Events above the 255 that a cell can count."""
    events: int
    """The number of all events."""


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
    held_out: int = 0,
) -> EventDataset:
    """Build a dataset of the recordings that the jobs return, in the order of `labels`.

    The recordings come from `files`, or from a `simulation` with these parameters.
    """
    if not any(is_test) or all(is_test):
        raise ValueError(
            f"dataset '{name}': all {len(labels)} recordings are on one side of the split; get the complete dataset"
        )
    shape = (len(labels), slicing.timesteps, 2, slicing.size, slicing.size)
    found = cache.prepared(name, shape, {**asdict(slicing), **(simulation or {})}, files, jobs)
    if found.skipped:
        warnings.warn(f"{name}: some files are damaged ({_problems(found)}); the rest is used", stacklevel=2)
    rates = [n / s if s else 0.0 for n, s in zip(found.events, found.seconds, strict=True)]
    test = torch.tensor(is_test)
    numbers = torch.tensor(labels)
    fingerprint = of_files(files, labels, is_test, json.dumps(simulation, sort_keys=True))  # independent of the slicing
    base = Dataset.of(
        name,
        _split(found, numbers, ~test),
        _split(found, numbers, test),
        classes,
        simulated=simulation is not None,
        fingerprint=fingerprint,
        held_out=held_out,
    )
    return EventDataset(
        replace(base.info, slicing=asdict(slicing)),
        base.train,
        base.test,
        slicing=slicing,
        train_rates=[r for r, t in zip(rates, is_test, strict=True) if not t],
        test_rates=[r for r, t in zip(rates, is_test, strict=True) if t],
        skipped=found.skipped,
        uncounted=found.uncounted,
        events=sum(found.events),
    )


def _problems(found: cache.Recordings) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(found.skipped.items()))


def _split(found: cache.Recordings, labels: torch.Tensor, chosen: torch.Tensor) -> Split:
    """Return consecutive recordings as a view of the mapped file, and scattered ones as a copy in memory."""
    index = chosen.nonzero().flatten()
    if len(index) and int(index[-1] - index[0]) + 1 == len(index):
        return Split(found.frames[index[0] : index[-1] + 1], labels[index])
    return Split(found.frames[index], labels[index])


def sliced(
    recordings: Sequence[Events], slicing: Slicing, starts: Sequence[int | None] | None = None
) -> cache.Recordings:
    """Cut recordings into frames, starting at the given times."""
    frames = np.empty((len(recordings), slicing.timesteps, 2, slicing.size, slicing.size), np.uint8)
    uncounted, skipped = 0, Counter[str]()
    for own, events, start in zip(frames, recordings, starts or [None] * len(recordings), strict=True):
        uncounted += count_into(
            own,
            events.squared(),
            window=slicing.window,
            by=slicing.slice_by,
            start=start,
            offset=slicing.offset,
        )
        skipped.update(events.skipped)
    if slicing.binary:
        np.minimum(frames, 1, out=frames)
        uncounted = 0
    numbers = [len(e) for e in recordings]
    seconds = [float(e.t[-1] - e.t[0]) / 1e6 if len(e) else 0.0 for e in recordings]
    return cache.Recordings(torch.from_numpy(frames), numbers, seconds, dict(skipped), uncounted)


def from_file(path: Path, slicing: Slicing) -> cache.Recordings:
    """Read the recording in a file, skip damaged parts, and cut it into frames."""
    return sliced([read(path, size=sensor_of(slicing.sensor), on_error="skip")], slicing)


def jobs_of_files(paths: Iterable[Path], slicing: Slicing) -> list[Callable[[], cache.Recordings]]:
    """Return the jobs of `build` for these files."""
    return [partial(from_file, path, slicing) for path in paths]


def own_recording(path: Path, slicing: Slicing) -> cache.Recordings:
    """Do the same for a user's recording, but refuse events outside the sensor: its size was given wrong."""
    events = read(path, size=sensor_of(slicing.sensor), on_error="skip")
    if outside := events.skipped.get("outside", 0):
        raise ValueError(
            f"{path}: {outside} of {outside + len(events)} events are outside the sensor of {events.width} x "
            f"{events.height}; give the true size of the sensor"
        )
    if not len(events):
        raise ValueError(f"{path}: no events; remove the file, or get it again")
    if slicing.size > max(events.width, events.height):
        raise ValueError(
            f"{path}: a sensor of {events.width} x {events.height} is smaller than the frames of {slicing.size} x "
            f"{slicing.size}; use smaller frames (train: --set image_size={max(events.width, events.height)})"
        )
    return sliced([events], slicing)


def seen(path: Path, info: DataInfo) -> Tensor:
    """Read a recording as a network sees it that was trained on the data of `info`: [T, C, H, W]."""
    if not info.slicing:
        raise ValueError(
            f"{path}: the network has no record of how recordings are sliced; give an array [T, C, H, W] (.npy)"
        )
    try:
        slicing = Slicing(**info.slicing)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"{path}: the network's slicing record does not fit this version of rheobase; give an array (.npy)"
        ) from None
    found = own_recording(path, slicing)
    if found.skipped:
        warnings.warn(f"{path}: the file is damaged ({_problems(found)}); the rest is used", stacklevel=2)
    return found.frames[0].float()
