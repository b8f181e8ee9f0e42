"""Count events per window and cell with NumPy and torch, in one pass and in the smallest safe type."""

import numpy as np
import torch
from numpy.typing import NDArray

from rheobase.data.events.stream import Events

SPARSE = 8  # cells per event above which writing zeros takes longer than finding the smallest type
GROUP = 7  # to find it, 2^7 neighbouring cells are counted together


def counted(events: Events, edges: NDArray[np.int64], width: int, height: int) -> NDArray[np.unsignedinteger]:
    """Count the events per cell between each of the `edges` and the next: [windows, 2 * height * width].

    Counts have 8, 16 or 32 bits, whatever the largest count needs.
    """
    index, cells, largest = _located(events, edges, width, height)
    counts = _occurrences(index, np.zeros(cells, _smallest(largest)))
    if counts.itemsize > 1:
        counts = counts.astype(np.min_scalar_type(int(counts.max())), copy=False)
    return counts.reshape(len(edges) - 1, -1)


def count_bytes(counts: NDArray[np.uint8], events: Events, edges: NDArray[np.int64], width: int, height: int) -> int:
    """Write the same counts, up to 255, to `counts`, and return how many events were not counted."""
    index, cells, largest = _located(events, edges, width, height)
    if largest < 2**8:
        counts.fill(0)
        _occurrences(index, counts.reshape(-1))
        return 0
    exact = _occurrences(index, np.zeros(cells, _smallest(largest))).reshape(counts.shape)
    np.minimum(exact, 255, out=counts, casting="unsafe")
    return len(index) - int(counts.sum(dtype=np.int64))


def scaled(
    position: NDArray[np.uint16], cells: int, pixels: int, number: type[np.unsignedinteger]
) -> NDArray[np.unsignedinteger]:
    """Return the cells of pixels along one side of the sensor."""
    if cells == pixels:
        return position.astype(number, copy=False)
    return position * number(cells) // number(pixels)


def _cells(events: Events, part: slice, width: int, height: int) -> NDArray[np.unsignedinteger]:
    largest = max(2 * height * width, events.width * width, events.height * height)
    number = np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64  # narrow types are faster
    cell = scaled(events.y[part], height, events.height, number) * number(width)
    cell += scaled(events.x[part], width, events.width, number)
    cell += events.p[part] * number(height * width)
    return cell


def _located(events: Events, edges: NDArray[np.int64], width: int, height: int) -> tuple[NDArray[np.int64], int, int]:
    """Return the cell of every event, counted over all windows, the number of cells, and an upper limit of counts."""
    windows, frame = len(edges) - 1, 2 * height * width
    cells, per_window = windows * frame, np.diff(edges)
    index = np.repeat(np.arange(0, cells, frame, dtype=np.int64), per_window)
    index += _cells(events, slice(int(edges[0]), int(edges[-1])), width, height)
    return index, cells, _largest(index, cells, int(per_window.max()))


def _largest(index: NDArray[np.int64], cells: int, in_window: int) -> int:
    """Return an upper limit of the events in a cell: those in a window, or in a group of cells."""
    if in_window < 2**8 or cells < SPARSE * len(index):
        return in_window
    # a group can span two windows
    groups = np.zeros((cells >> GROUP) + 1, _smallest(2 * in_window))
    return min(in_window, int(_occurrences(index >> GROUP, groups).max()))


def _smallest(largest: int) -> str:
    """Return the smallest type that can count to `largest`."""
    return "u1" if largest < 2**8 else "u2" if largest < 2**16 else "u4"


def _occurrences(index: NDArray[np.int64], counts: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """Count how often every number occurs, into `counts`, which must be zeros."""
    # NumPy's bincount uses 64 bits, but most frames are mostly zeros, and writing those takes the longest
    # torch cannot add unsigned numbers above 8 bits, but the bits of a signed sum are the same
    kind = counts.dtype if counts.itemsize == 1 else np.dtype(f"i{counts.itemsize}")
    ones = np.ones(len(index), kind)
    torch.from_numpy(counts.view(kind)).scatter_add_(0, torch.from_numpy(index), torch.from_numpy(ones))
    return counts
