"""Slices of time as frames: what a network sees of a recording."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

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
    tell only whether there were any. Counts have 16 bits, or 32 where a window has too many events for that.
    """
    width, height = size or (events.width, events.height)
    if window < 1 or timesteps < 1:
        raise ValueError(f"expected a window and timesteps of at least 1, got {window} us and {timesteps}")
    if not (0 < width <= events.width and 0 < height <= events.height):
        raise ValueError(
            f"frames of {width} x {height} do not fit a sensor of {events.width} x {events.height}; "
            "expected at least 1 and at most its size"
        )
    if start is None:
        start = int(events.t[0]) if len(events) else 0
    edges = np.searchsorted(events.t, start + offset + window * np.arange(timesteps + 1, dtype=np.int64))
    first = int(edges[0])
    cell = _cells(events, slice(first, int(edges[-1])), width, height)
    # most frames are mostly zeros, and writing those takes the longest
    narrow = np.diff(edges).max() < 2**16
    frames = np.zeros((timesteps, 2 * height * width), np.uint16 if narrow else np.uint32)
    for frame, (left, right) in zip(frames, pairwise((edges - first).tolist()), strict=True):
        if left < right:
            frame[:] = np.bincount(cell[left:right], minlength=len(frame))
    if binary:
        np.minimum(frames, 1, out=frames)
    return frames.reshape(timesteps, 2, height, width)


def _cells(events: Events, part: slice, width: int, height: int) -> NDArray[np.unsignedinteger]:
    largest = max(2 * height * width, events.width * width, events.height * height)
    number = np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64  # narrow ones are faster
    cell = _scaled(events.y[part], height, events.height, number)
    cell *= number(width)
    cell += _scaled(events.x[part], width, events.width, number)
    cell += events.p[part] * number(height * width)
    return cell


def _scaled(
    position: NDArray[np.uint16], cells: int, pixels: int, number: type[np.unsignedinteger]
) -> NDArray[np.unsignedinteger]:
    if cells == pixels:
        return position.astype(number)
    return position * number(cells) // number(pixels)
