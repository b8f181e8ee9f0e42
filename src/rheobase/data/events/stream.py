"""A recording of an event camera in memory, and the checks every reader ends with."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

OnError = Literal["raise", "skip"]
"""What to do with damage in a file: raise, or leave it out and count it."""
LARGEST = 2**15 - 1  # side of a sensor in pixels


@dataclass(frozen=True)
class Events:
    """Events in order of time: t in microseconds, pixel x and y, polarity p (1: brighter).

    All of this is checked here and nowhere after; the arrays must not be changed.
    """

    t: NDArray[np.int64]
    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    p: NDArray[np.uint8]
    width: int
    height: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What was wrong with the file and left out: kind of problem to number of times."""

    def __post_init__(self) -> None:
        for name, kind in (("t", np.int64), ("x", np.uint16), ("y", np.uint16), ("p", np.uint8)):
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != kind or column.shape != (len(self.t),):
                got = f"{column.dtype}{list(column.shape)}" if isinstance(column, np.ndarray) else type(column).__name__
                raise ValueError(
                    f"events: expected {name} as an array of {len(self.t)} {np.dtype(kind)} numbers, got {got}"
                )
        if (self.t[1:] < self.t[:-1]).any():
            raise ValueError("events: expected them in order of time; sort them by t first")
        if len(self) and not (self.x.max() < self.width and self.y.max() < self.height and self.p.max() < 2):
            raise ValueError(
                f"events at x up to {self.x.max()}, y up to {self.y.max()}, polarity up to {self.p.max()} are outside "
                f"a sensor of {self.width} x {self.height} with polarities 0 and 1; give its true size"
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
        """Without the checks, for columns that have passed them."""
        events = object.__new__(cls)
        events.__dict__.update(t=t, x=x, y=y, p=p, width=width, height=height, skipped=skipped or {})
        return events

    def __len__(self) -> int:
        return len(self.t)

    def between(self, start: int, stop: int) -> "Events":
        """Those with start <= t < stop; what was left out of the file is not counted again."""
        part = slice(*np.searchsorted(self.t, (start, stop)))
        return Events.trusted(self.t[part], self.x[part], self.y[part], self.p[part], self.width, self.height)

    def squared(self) -> "Events":
        """The same on a square sensor with this one in its middle: what square frames can hold without distortion."""
        side = max(self.width, self.height)
        if self.width == self.height:
            return self
        x, y = self.x + np.uint16((side - self.width) // 2), self.y + np.uint16((side - self.height) // 2)
        return Events.trusted(self.t, x, y, self.p, side, side, self.skipped)


class Problems:
    """Raises at the first problem of a file, or counts all of them, as asked."""

    def __init__(self, source: str, on_error: OnError, unit: str = "byte") -> None:
        """`unit` is what offsets count."""
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected raise or skip, got '{on_error}'")
        self.source, self.raises, self.unit = source, on_error == "raise", unit
        self.counts: Counter[str] = Counter()

    def found(self, kind: str, what: str, offset: int, count: int = 1) -> None:
        if self.raises:
            raise ValueError(
                f"{self.source}: {what} at {self.unit} {offset}; get the file again, "
                "or leave damage out with on_error='skip'"
            )
        self.counts[kind] += count


def sensor_of(text: str) -> tuple[int, int] | None:
    """Width and height of a sensor given as 346x260; None for `none`."""
    if text == "none":
        return None
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and fits(int(width), int(height))):
        raise ValueError(f"sensor: expected its width and height like 346x260, or none, got '{text}'")
    return int(width), int(height)


def fits(width: int, height: int) -> bool:
    """Whether a sensor can have this size."""
    return 0 < min(width, height) <= max(width, height) <= LARGEST


def no_size(source: str, how: str) -> ValueError:
    """For a file that does not say what its sensor is; `how` it could."""
    given = "--sensor 346x260 (train: --set sensor=346x260)"
    return ValueError(f"{source}: no size of the sensor; {how}, or give it: {given}")


def checked(
    problems: Problems,
    t: NDArray[np.int64],
    x: NDArray[Any],
    y: NDArray[Any],
    p: NDArray[Any],
    size: tuple[int, int],
    offset: Callable[[int], int],
) -> Events:
    """The events inside the sensor and in order of time; `offset` tells where in the file an event is.

    Coordinates are not below 0, and polarities are 0 and 1: that is for the reader to know.
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
        backwards = min(too_early, too_late, key=np.count_nonzero)  # one wrong time must not cost all that follow
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
