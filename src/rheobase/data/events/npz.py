"""Events as arrays in an `.npz` file: t, x, y, p and, for the size of the sensor, width and height.

`np.load` believes the sizes that a file states and so allocates what damage asks for; here they are checked first.
"""

import io
import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rheobase.data.events.stream import LARGEST, Events, OnError, Problems, checked, fits, no_size

SIDES = ("width", "height")
EXPANSION = 1040  # deflate cannot make more of a byte


def arrays(content: bytes, source: str, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names; ones that are not there are left out."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            return {n: _array(archive, members[f"{n}.npy"]) for n in names if f"{n}.npy" in members}
    except Exception as error:  # damage makes zipfile and the parser of headers fail in many ways
        raise ValueError(f"{source}: not a whole .npz file of arrays ({error}); get the file again") from None


def decode(content: bytes, source: str, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    found = arrays(content, source, ("t", "x", "y", "p", *SIDES))
    if missing := [name for name in ("t", "x", "y", "p") if name not in found]:
        raise ValueError(f"{source}: no array {missing[0]}; expected t, x, y and p of the same length")
    if all(name in found and found[name].ndim == 0 and found[name].dtype.kind in "iu" for name in SIDES):
        size = int(found["width"]), int(found["height"])
    elif size is None:
        raise no_size(source, "store whole numbers width and height")
    return from_arrays(found, source, size, on_error)


def from_arrays(found: dict[str, NDArray[Any]], source: str, size: tuple[int, int], on_error: OnError) -> Events:
    columns = [found[name] for name in ("t", "x", "y", "p")]
    if any(c.ndim != 1 or len(c) != len(columns[0]) or c.dtype.kind not in "iub" for c in columns):
        kinds = ", ".join(f"{c.dtype}{list(c.shape)}" for c in columns)
        raise ValueError(f"{source}: expected whole numbers t, x, y, p of the same length, got {kinds}")
    t, x, y, p = (c.astype(np.int64) for c in columns)
    if not fits(*size):
        raise ValueError(f"{source}: expected a sensor of 1 to {LARGEST} pixels in width and height, got {size}")
    if len(p) and p.min() == -1 and not (p == 0).any():
        p = (p + 1) // 2  # -1 and 1, as some write darker and brighter
    problems, kept = Problems(source, on_error, unit="event"), np.arange(len(t))
    impossible = (t < 0) | (p < 0) | (p > 1)
    if impossible.any():
        what = "a time below 0, or a polarity other than 0 and 1 (or -1 and 1),"
        problems.found("impossible", what, int(impossible.argmax()), int(impossible.sum()))
        kept = np.flatnonzero(~impossible)
        t, x, y, p = t[kept], x[kept], y[kept], p[kept]
    return checked(problems, t, x, y, p, size, lambda i: int(kept[i]) if len(kept) else 0)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    if info.file_size > EXPANSION * (info.compress_size + 1):
        raise ValueError(f"{info.filename} claims {info.file_size} bytes")
    file = io.BytesIO(archive.read(info))  # checks the CRC
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(file)
    values = np.frombuffer(file.getbuffer()[file.tell() :], dtype)
    return values.reshape(shape, order="F" if fortran else "C")
