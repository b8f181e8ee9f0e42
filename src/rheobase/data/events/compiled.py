"""The same counts as `counting`, compiled by numba (an extra): about twice as fast.

Windows are zeroed and counted one after another, so that each stays in the processor's cache.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rheobase.data.events.counting import scaled
from rheobase.data.events.stream import Events


def counted(events: Events, edges: NDArray[np.int64], width: int, height: int) -> NDArray[np.unsignedinteger]:
    """Return the same as `counting.counted`."""
    columns, rows, bounds = _tables(events, edges, width, height)
    counts: NDArray[np.unsignedinteger] = np.empty((len(edges) - 1, 2 * height * width), np.uint8)
    done = 0
    while True:
        done = _count(counts, done, bounds, columns, rows, events.x, events.y, events.p)
        if done == len(counts):
            return counts
        counts = counts.astype(f"u{2 * counts.itemsize}")


def count_bytes(counts: NDArray[np.uint8], events: Events, edges: NDArray[np.int64], width: int, height: int) -> int:
    """Do the same as `counting.count_bytes`."""
    columns, rows, bounds = _tables(events, edges, width, height)
    return int(_count_bytes(counts, bounds, columns, rows, events.x, events.y, events.p))


def _tables(
    events: Events, edges: NDArray[np.int64], width: int, height: int
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger], NDArray[np.uint64]]:
    """Return what each column and each row of the sensor adds to the cell number, and the edges."""
    columns = scaled(np.arange(events.width, dtype=np.uint16), width, events.width, np.uint32)
    rows = scaled(np.arange(events.height, dtype=np.uint16), height, events.height, np.uint32) * np.uint32(width)
    return columns, rows, edges.astype(np.uint64)  # unsigned, because numba handles signed positions more slowly


@njit(cache=True, nogil=True)
def _count(counts, done, bounds, columns, rows, x, y, p):  # type: ignore[no-untyped-def]
    """Count the windows from `done` on and return the first one in which a count overflows."""
    cells_of_polarity = np.uint32(counts.shape[1] // 2)
    for window in range(done, len(counts)):
        frame = counts[window]
        frame[:] = 0
        for event in range(bounds[window], bounds[window + 1]):
            cell = rows[y[event]] + columns[x[event]] + p[event] * cells_of_polarity
            frame[cell] += 1
            if frame[cell] == 0:
                return window
    return len(counts)


@njit(cache=True, nogil=True)
def _count_bytes(counts, bounds, columns, rows, x, y, p):  # type: ignore[no-untyped-def]
    """Count all windows, each cell up to 255, and return how many events were not counted."""
    cells_of_polarity = np.uint32(counts.shape[1] // 2)
    left_out = 0
    for window in range(len(counts)):
        frame = counts[window]
        frame[:] = 0
        for event in range(bounds[window], bounds[window + 1]):
            cell = rows[y[event]] + columns[x[event]] + p[event] * cells_of_polarity
            if frame[cell] == 255:
                left_out += 1
            else:
                frame[cell] += 1
    return left_out
