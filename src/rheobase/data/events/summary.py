"""A summary of a recording: a few numbers, a picture of how often each cell fired, and the rate over time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rheobase.data.events.slicing import slices
from rheobase.data.events.stream import Events

PARTS = 100  # of a recording, for the rate over time
SIDE = 128  # largest side of the picture


@dataclass(frozen=True)
class Summary:
    """A summary of a recording."""

    events: int
    width: int
    height: int
    seconds: float
    """From the first to the last event."""
    brighter: float
    """Fraction of events with polarity 1."""
    gaps: list[tuple[float, float]]
    """Long pauses: seconds from the first event to the beginning of the pause, and its length in seconds."""
    rates: list[float]
    """Events per second in each of the `PARTS` equal parts of the recording."""
    picture: NDArray[np.int64]
    """Events per polarity and cell, [2, H, W]. Square, with the sensor at the centre."""
    skipped: Mapping[str, int]
    """Damage in the file: how often each kind of problem occurred."""

    @property
    def rate(self) -> float:
        """Events per second; 0 if all have the same time."""
        return self.events / self.seconds if self.seconds else 0.0


def summary(events: Events, gap: int) -> Summary:
    """Summarise a recording. Pauses of at least `gap` microseconds count as gaps."""
    t, square = events.t, events.squared()
    start, end = (int(t[0]), int(t[-1])) if len(t) else (0, 0)
    pauses = np.diff(t)
    before = np.flatnonzero(pauses >= gap)
    edges = [start + (end + 1 - start) * i // PARTS for i in range(PARTS + 1)]
    counts = np.diff(np.searchsorted(t, np.array(edges, np.int64)))
    side = min(SIDE, square.width)
    return Summary(
        events=len(events),
        width=events.width,
        height=events.height,
        seconds=(end - start) / 1e6,
        brighter=float(events.p.mean()) if len(t) else 0.0,
        gaps=[(float(t[i] - start) / 1e6, float(pauses[i]) / 1e6) for i in before],
        rates=(counts * (PARTS * 1e6 / (end + 1 - start))).tolist(),
        picture=slices(square, timesteps=1, size=(side, side))[0].astype(np.int64),
        skipped=dict(events.skipped),
    )
