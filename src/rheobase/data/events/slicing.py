"""Slices of time as frames: what a network sees of a recording."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rheobase.data.events import counting
from rheobase.data.events.stream import Events


def slices(
    events: Events,
    *,
    window: int,
    timesteps: int,
    size: tuple[int, int] | None = None,
    start: int | None = None,
    offset: int = 0,
    binary: bool = False,
) -> NDArray[np.unsignedinteger]:
    """Events counted per polarity, cell and window of `window` microseconds: frames [T, 2, H, W].

    The first window begins `offset` microseconds after `start`, or after the first event. Pixel (x, y) falls into cell
    (x * W // width, y * H // height) of `size` (W, H). A window without events is a frame of zeros; `binary` frames
    tell only whether there were any. Counts have 8, 16 or 32 bits, the fewest that hold the largest of them.
    """
    width, height = size or (events.width, events.height)
    if window < 1 or timesteps < 1:
        raise ValueError(f"expected a window and timesteps of at least 1, got {window} us and {timesteps}")
    if not (0 < width <= events.width and 0 < height <= events.height):
        raise ValueError(
            f"frames of {width} x {height} do not fit a sensor of {events.width} x {events.height}; "
            "expected at least 1 and at most its size"
        )
    if len(events) and not (events.x.max() < events.width and events.y.max() < events.height and events.p.max() < 2):
        raise ValueError(
            f"events at x up to {events.x.max()}, y up to {events.y.max()}, polarity up to {events.p.max()} "
            f"are outside a sensor of {events.width} x {events.height} with polarities 0 and 1; give its true size"
        )
    if start is None:
        start = int(events.t[0]) if len(events) else 0
    if not -(2**63) <= start + offset <= start + offset + window * timesteps < 2**63:
        raise ValueError(f"windows from {start + offset} us on end at a time beyond 64 bits; give another start")
    edges = np.searchsorted(events.t, start + offset + window * np.arange(timesteps + 1, dtype=np.int64))
    frames = _counter()(events, edges, width, height).reshape(timesteps, 2, height, width)
    return (frames > 0).view(np.uint8) if binary else frames


@cache
def _counter() -> Callable[[Events, NDArray[np.int64], int, int], NDArray[np.unsignedinteger]]:
    try:
        from rheobase.data.events import compiled
    except (ImportError, RuntimeError):  # numba is not installed, or finds no folder for its cache
        return counting.counted
    return compiled.counted
