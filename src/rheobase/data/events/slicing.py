"""Cut a recording into the frames that a network sees."""

from functools import cache
from types import ModuleType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rheobase.data.events import counting
from rheobase.data.events.stream import Events

SliceBy = Literal["time", "count"]


def slices(
    events: Events,
    *,
    timesteps: int,
    window: int = 0,
    by: SliceBy = "time",
    size: tuple[int, int] | None = None,
    start: int | None = None,
    offset: int = 0,
    binary: bool = False,
) -> NDArray[np.unsignedinteger]:
    """Count events per polarity, cell and slice: frames [T, 2, H, W].

    A slice lasts `window` microseconds, or has `window` events if `by` is `count`. A window of 0 cuts the whole
    recording into `timesteps` equal slices. The first slice begins `offset` microseconds after `start`, or after the
    first event. Pixel (x, y) falls into cell (x * W // width, y * H // height) of `size` (W, H). A slice without events
    is a frame of zeros. With `binary`, cells are 1 if there was any event. Counts have 8, 16 or 32 bits, whatever the
    largest count needs.
    """
    width, height = size or (events.width, events.height)
    edges = _edges(events, window, timesteps, by, (width, height), start, offset)
    if binary:
        frames = np.empty((timesteps, 2 * height * width), np.uint8)
        _counter().count_bytes(frames, events, edges, width, height)
        np.minimum(frames, 1, out=frames)
    else:
        frames = _counter().counted(events, edges, width, height)
    return frames.reshape(timesteps, 2, height, width)


def count_into(
    frames: NDArray[np.uint8],
    events: Events,
    *,
    window: int = 0,
    by: SliceBy = "time",
    start: int | None = None,
    offset: int = 0,
) -> int:
    """Write the `slices` of these events to contiguous `frames` [T, 2, H, W]. A count stops at 255.

    Return the number of events that were not counted because of this.
    """
    timesteps, _, height, width = frames.shape
    edges = _edges(events, window, timesteps, by, (width, height), start, offset)
    return _counter().count_bytes(frames.reshape(timesteps, -1), events, edges, width, height)


def _edges(
    events: Events,
    window: int,
    timesteps: int,
    by: SliceBy,
    size: tuple[int, int],
    start: int | None,
    offset: int,
) -> NDArray[np.int64]:
    """Return the index of the first event of every slice, and of the first event after the last slice."""
    width, height = size
    if window < 0 or timesteps < 1:
        raise ValueError(
            f"expected a window of 0 or more and at least 1 timestep, got a window of {window} and {timesteps}"
        )
    if by not in get_args(SliceBy):
        raise ValueError(f"expected slices by time or by count, got '{by}'")
    if not (0 < width <= events.width and 0 < height <= events.height):
        raise ValueError(
            f"frames of {width} x {height} do not fit a sensor of {events.width} x {events.height}; "
            "use at least 1 and at most the size of the sensor"
        )
    if start is None:
        start = int(events.t[0]) if len(events) else 0
    start += offset
    all_of_it = max(0, int(events.t[-1]) + 1 - start) if len(events) else 0
    span = window * timesteps if window and by == "time" else all_of_it
    if not -(2**63) <= start <= start + span < 2**63:
        raise ValueError(f"windows from {start} us on end at a time above 64 bits; give another start")
    steps = np.arange(timesteps + 1, dtype=np.int64)
    if by == "count":
        first = int(np.searchsorted(events.t, start))
        rest = len(events) - first
        return first + (np.minimum(min(window, rest) * steps, rest) if window else rest * steps // timesteps)
    if window:
        return np.searchsorted(events.t, start + window * steps)
    return np.searchsorted(events.t, np.array([start + span * i // timesteps for i in range(timesteps + 1)], np.int64))


@cache
def _counter() -> ModuleType:
    """Return the module that counts: `compiled`, or `counting` without numba."""
    try:
        from rheobase.data.events import compiled
    except (ImportError, RuntimeError):  # numba is not installed, or finds no folder for its cache
        return counting
    return compiled
