"""An event-camera recording in memory, and the checks that every reader runs at the end."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

OnError = Literal["raise", "skip"]
"""What to do with damage in a file: raise an error, or skip and count it."""
LARGEST = 2**15 - 1  # side of a sensor in pixels


@dataclass(frozen=True)
class Events:
    """Events in order of time: t in microseconds, pixel x and y, polarity p (1: brighter).

    This is checked only here, so the arrays must not be changed afterwards.
    """

    t: NDArray[np.int64]
    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    p: NDArray[np.uint8]
    width: int
    height: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Damage in the file that was skipped: how often each kind of problem occurred."""

    def __post_init__(self) -> None:
        for name, kind in (("t", np.int64), ("x", np.uint16), ("y", np.uint16), ("p", np.uint8)):
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != kind or column.shape != (len(self.t),):
                got = f"{column.dtype}{list(column.shape)}" if isinstance(column, np.ndarray) else type(column).__name__
                raise ValueError(
                    f"events: expected {name} to be an array of {len(self.t)} {np.dtype(kind)} numbers, got {got}"
                )
        if (self.t[1:] < self.t[:-1]).any():
            raise ValueError("events: expected them in order of time; sort them by t")
        if len(self) and not (self.x.max() < self.width and self.y.max() < self.height and self.p.max() < 2):
            raise ValueError(
                f"events at x up to {self.x.max()}, y up to {self.y.max()}, polarity up to {self.p.max()} are outside "
                f"a sensor of {self.width} x {self.height} with polarities 0 and 1; give the true size of the sensor"
            )

    @classmethod
    def trusted(
        cls,
        t: NDArray[np.int64],
        x: NDArray[np.uint16],
        y: NDArray[np.uint16],
        p: NDArray[np.uint8],
        width: int,
        height: int,
        skipped: Mapping[str, int] | None = None,
    ) -> "Events":
        """Make events without checks, from columns that have passed them."""
        events = object.__new__(cls)
        events.__dict__.update(t=t, x=x, y=y, p=p, width=width, height=height, skipped=skipped or {})
        return events

    def __len__(self) -> int:
        return len(self.t)

    def between(self, start: int, stop: int) -> "Events":
        """Return the events with start <= t < stop. Their `skipped` is empty."""
        part = slice(*np.searchsorted(self.t, (start, stop)))
        return Events.trusted(self.t[part], self.x[part], self.y[part], self.p[part], self.width, self.height)

    def squared(self) -> "Events":
        """Return the events on a square sensor with this one at its centre, so that square frames are not distorted."""
        side = max(self.width, self.height)
        if self.width == self.height:
            return self
        x, y = self.x + np.uint16((side - self.width) // 2), self.y + np.uint16((side - self.height) // 2)
        return Events.trusted(self.t, x, y, self.p, side, side, self.skipped)


class Problems:
    """The problems of a file: raise an error at the first one, or count them all."""

    def __init__(self, source: str, on_error: OnError, unit: str = "byte") -> None:
        """Name the file, and the `unit` of offsets in it."""
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected raise or skip, got '{on_error}'")
        self.source, self.raises, self.unit = source, on_error == "raise", unit
        self.counts: Counter[str] = Counter()

    def found(self, kind: str, what: str, offset: int, count: int = 1) -> None:
        """Report a problem: raise a ValueError, or count it."""
        if self.raises:
            raise ValueError(
                f"{self.source}: {what} at {self.unit} {offset}; get the file again, "
                "or skip damage with on_error='skip'"
            )
        self.counts[kind] += count


def sensor_of(text: str) -> tuple[int, int] | None:
    """Return width and height of a sensor given as 346x260; None for `none`."""
    if text == "none":
        return None
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and fits(int(width), int(height))):
        raise ValueError(f"sensor: expected width and height such as 346x260, or none, got '{text}'")
    return int(width), int(height)


def fits(width: int, height: int) -> bool:
    """Return whether a sensor can have this size."""
    return 0 < min(width, height) <= max(width, height) <= LARGEST


def no_size(source: str, how: str) -> ValueError:
    """Return the error for a file that does not state its sensor. `how` says how it could."""
    given = "--sensor 346x260 (train: --set sensor=346x260)"
    return ValueError(f"{source}: the sensor size is missing; {how}, or give it: {given}")


def checked(
    problems: Problems,
    t: NDArray[np.int64],
    x: NDArray[Any],
    y: NDArray[Any],
    p: NDArray[Any],
    size: tuple[int, int],
    offset: Callable[[int], int],
) -> Events:
    """Return the events inside the sensor and in order of time. `offset` gives the place of an event in the file.

    Readers must make sure that polarities are 0 or 1.
    """
    width, height = size
    index = np.arange(0)
    outside = (x < 0) | (y < 0) | (x >= width) | (y >= height)
    if outside.any():
        first, number = int(outside.argmax()), int(outside.sum())
        what = f"an event at pixel ({x[first]}, {y[first]}), one of {number} outside the sensor of {width} x {height},"
        problems.found("outside", what, offset(first), number)
        index = np.flatnonzero(~outside)
        t, x, y, p = t[index], x[index], y[index], p[index]
    falls = t[1:] < t[:-1]
    if falls.any():
        too_early, too_late = t < np.maximum.accumulate(t), t > np.minimum.accumulate(t[::-1])[::-1]
        backwards = min(too_early, too_late, key=np.count_nonzero)  # one wrong time must not discard all that follow
        first = int(falls.argmax()) + 1
        what = f"time running backwards, from {t[first - 1]} to {t[first]} us,"
        problems.found("backwards", what, offset(int(index[first]) if len(index) else first), int(backwards.sum()))
        t, x, y, p = t[~backwards], x[~backwards], y[~backwards], p[~backwards]
    if not len(t):
        problems.found("empty", "no events", offset(0))
    return Events.trusted(
        t,
        x.astype(np.uint16, copy=False),
        y.astype(np.uint16, copy=False),
        p.astype(np.uint8, copy=False),
        width,
        height,
        dict(problems.counts),
    )
