"""Events as arrays in an `.npz` file: t, x, y, p and, for the sensor, width and height."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheobase.data.arrays import from_npz
from rheobase.data.events.stream import LARGEST, Events, OnError, Problems, checked, fits, no_size

SIDES = ("width", "height")


def decode(content: bytes, source: str, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Decode a recording in this format."""
    found = from_npz(content, source, ("t", "x", "y", "p", *SIDES))
    if missing := [name for name in ("t", "x", "y", "p") if name not in found]:
        raise ValueError(f"{source}: no array {missing[0]}; expected t, x, y and p of the same length")
    if all(name in found and found[name].ndim == 0 and found[name].dtype.kind in "iu" for name in SIDES):
        size = int(found["width"]), int(found["height"])
    elif size is None:
        raise no_size(source, "store whole numbers as width and height")
    return from_arrays(found, source, size, on_error)


def from_arrays(found: dict[str, NDArray[Any]], source: str, size: tuple[int, int], on_error: OnError) -> Events:
    """Return the events in these arrays."""
    columns = [found[name] for name in ("t", "x", "y", "p")]
    if any(c.ndim != 1 or len(c) != len(columns[0]) or c.dtype.kind not in "iub" for c in columns):
        kinds = ", ".join(f"{c.dtype}{list(c.shape)}" for c in columns)
        raise ValueError(f"{source}: expected whole numbers t, x, y, p of the same length, got {kinds}")
    t, x, y, p = (c.astype(np.int64) for c in columns)
    if not fits(*size):
        raise ValueError(f"{source}: expected a sensor of 1 to {LARGEST} pixels in width and height, got {size}")
    if len(p) and p.min() == -1 and not (p == 0).any():
        p = (p + 1) // 2  # some files use -1 and 1 for darker and brighter
    problems, kept = Problems(source, on_error, unit="event"), np.arange(len(t))
    impossible = (t < 0) | (p < 0) | (p > 1)
    if impossible.any():
        what = "a time below 0, or a polarity other than 0 and 1 (or -1 and 1),"
        problems.found("impossible", what, int(impossible.argmax()), int(impossible.sum()))
        kept = np.flatnonzero(~impossible)
        t, x, y, p = t[kept], x[kept], y[kept], p[kept]
    return checked(problems, t, x, y, p, size, lambda i: int(kept[i]) if len(kept) else 0)
