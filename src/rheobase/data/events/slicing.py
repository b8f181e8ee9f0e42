"""Slices of time as frames: what a network sees of a recording."""

from functools import cache
from types import ModuleType

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
    edges = _edges(events, window, timesteps, (width, height), start, offset)
    if binary:
        frames = np.empty((timesteps, 2 * height * width), np.uint8)
        _counter().count_bytes(frames, events, edges, width, height)
        np.minimum(frames, 1, out=frames)
    else:
        frames = _counter().counted(events, edges, width, height)
    return frames.reshape(timesteps, 2, height, width)


def count_into(
    frames: NDArray[np.uint8], events: Events, *, window: int, start: int | None = None, offset: int = 0
) -> int:
    """Write the `slices` of these events to contiguous `frames` [T, 2, H, W]; a count stops at 255.

    The result is the number of events that were not counted for that.
    """
    timesteps, _, height, width = frames.shape
    edges = _edges(events, window, timesteps, (width, height), start, offset)
    return _counter().count_bytes(frames.reshape(timesteps, -1), events, edges, width, height)


def _edges(
    events: Events, window: int, timesteps: int, size: tuple[int, int], start: int | None, offset: int
) -> NDArray[np.int64]:
    """The index of the first event of every window, and of the first one after the last."""
    width, height = size
    if window < 1 or timesteps < 1:
        raise ValueError(f"expected a window and timesteps of at least 1, got {window} us and {timesteps}")
    if not (0 < width <= events.width and 0 < height <= events.height):
        raise ValueError(
            f"frames of {width} x {height} do not fit a sensor of {events.width} x {events.height}; "
            "expected at least 1 and at most its size"
        )
    if start is None:
        start = int(events.t[0]) if len(events) else 0
    if not -(2**63) <= start + offset <= start + offset + window * timesteps < 2**63:
        raise ValueError(f"windows from {start + offset} us on end at a time beyond 64 bits; give another start")
    return np.searchsorted(events.t, start + offset + window * np.arange(timesteps + 1, dtype=np.int64))


@cache
def _counter() -> ModuleType:
    """Who counts: `compiled`, or `counting` without numba."""
    try:
        from rheobase.data.events import compiled
    except (ImportError, RuntimeError):  # numba is not installed, or finds no folder for its cache
        return counting
    return compiled
