"""Slices of time as frames: what a network sees of a recording."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rheobase.data.events.stream import Events

BLOCK = 2**16  # events handled at once: what they need stays in the cache


def slices(
    events: Events,
    *,
    window: int,
    timesteps: int,
    size: tuple[int, int] | None = None,
    start: int | None = None,
    offset: int = 0,
    binary: bool = False,
) -> NDArray[np.int64]:
    """Events counted per polarity, cell and window of `window` microseconds: frames [T, 2, H, W].

    The first window begins `offset` microseconds after `start`, or after the first event. Pixel (x, y) falls into cell
    (x * W // width, y * H // height) of `size` (W, H). A window without events is a frame of zeros; `binary` frames
    tell only whether there were any.
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
    cells = 2 * height * width
    frames = np.zeros((timesteps, cells), np.int64)
    for begin in range(int(edges[0]), int(edges[-1]), BLOCK):
        end = min(begin + BLOCK, int(edges[-1]))
        cell = _cells(events, slice(begin, end), width, height)
        first, last = np.searchsorted(edges, (begin, end - 1), side="right") - 1
        bounds = np.clip(edges[first : last + 2] - begin, 0, end - begin).tolist()
        for k, (left, right) in enumerate(pairwise(bounds), int(first)):
            if left < right:
                frames[k] += np.bincount(cell[left:right], minlength=cells)
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
