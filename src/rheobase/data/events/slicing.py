"""Slices of time as frames: what a network sees of a recording."""

import numpy as np
import torch
from numpy.typing import NDArray

from rheobase.data.events.stream import Events

SPARSE = 8  # cells per event: from here on, writing zeros takes longer than looking for the smallest type of counts
GROUP = 7  # 2^7 neighbouring cells are counted together for that


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
    tell only whether there were any. Counts have 8, 16 or 32 bits, never too few.
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
    per_window, frame = np.diff(edges), 2 * height * width
    cell = _cells(events, slice(int(edges[0]), int(edges[-1])), width, height)
    cells = timesteps * frame
    index = np.repeat(np.arange(0, cells, frame, dtype=np.int64), per_window)
    index += cell
    frames = _counted(index, cells, _largest(index, cells, int(per_window.max())))
    if binary:
        np.minimum(frames, 1, out=frames)
    return frames.reshape(timesteps, 2, height, width)


def _largest(index: NDArray[np.int64], cells: int, in_window: int) -> int:
    """A number of events that no cell exceeds, since no window or no group of cells does."""
    if in_window < 2**8 or cells < SPARSE * len(index):
        return in_window
    # a group can lie in two windows
    return min(in_window, int(_counted(index >> GROUP, (cells >> GROUP) + 1, 2 * in_window).max()))


def _counted(index: NDArray[np.int64], cells: int, largest: int) -> NDArray[np.unsignedinteger]:
    """How often every number below `cells` occurs, in the smallest type that can count to `largest`."""
    # NumPy's bincount counts with 64 bits, and writing zeros takes the longest: most frames are mostly zeros
    unsigned, signed = ("u1", "u1") if largest < 2**8 else ("u2", "i2") if largest < 2**16 else ("u4", "i4")
    counts = np.zeros(cells, unsigned)
    # torch adds no unsigned numbers above 8 bits, but the bits of a sum are the same for signed ones
    ones = np.ones(len(index), signed)
    torch.from_numpy(counts.view(signed)).scatter_add_(0, torch.from_numpy(index), torch.from_numpy(ones))
    return counts


def _cells(events: Events, part: slice, width: int, height: int) -> NDArray[np.unsignedinteger]:
    largest = max(2 * height * width, events.width * width, events.height * height)
    number = np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64  # narrow ones are faster
    cell = _scaled(events.y[part], height, events.height, number) * number(width)
    cell += _scaled(events.x[part], width, events.width, number)
    cell += events.p[part] * number(height * width)
    return cell


def _scaled(
    position: NDArray[np.uint16], cells: int, pixels: int, number: type[np.unsignedinteger]
) -> NDArray[np.unsignedinteger]:
    if cells == pixels:
        return position.astype(number, copy=False)
    return position * number(cells) // number(pixels)
