"""Event-camera recordings: read them, cut them into frames, simulate a camera."""

from pathlib import Path

import numpy as np

from rheobase.data.events import aedat, aedat4, binary, csv, npz, prophesee
from rheobase.data.events.camera import simulate
from rheobase.data.events.slicing import count_into, slices
from rheobase.data.events.stream import Events, OnError, Problems, checked
from rheobase.files import read_plain

__all__ = ["SUFFIXES", "Events", "OnError", "count_into", "decode", "read", "simulate", "slices"]

SUFFIXES = {".aedat", ".aedat4", ".bin", ".csv", ".dat", ".npz", ".raw"}
"""Suffixes of the files that `read` accepts."""


def read(path: Path | str, *, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Read a recording: AEDAT 2.0, 3.1 or 4, Prophesee DAT or RAW, N-MNIST (.bin), .npz or .csv.

    `size` is the width and height of the sensor, for files and formats that do not state it. Damage in the file raises
    an error, or, with `on_error="skip"`, is skipped and counted in `Events.skipped`.
    """
    try:
        content = read_plain(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; check the path") from None
    return decode(content, str(path), size=size, on_error=on_error)


def decode(content: bytes, source: str, *, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Decode a recording from the content of the file `source`."""
    if content.startswith(aedat.MAGIC_2):
        return aedat.decode_2(content, source, size, on_error)
    if content.startswith(aedat.MAGIC_3):
        return aedat.decode_3(content, source, size, on_error)
    if content.startswith(aedat4.MAGIC):
        return aedat4.decode(content, source, on_error)
    if content.startswith(prophesee.MAGIC):
        return prophesee.decode(content, source, size, on_error)
    match Path(source).suffix.lower():
        case ".npz":
            return npz.decode(content, source, size, on_error)
        case ".bin":
            return binary.decode(content, source, size or binary.NMNIST, on_error)
        case ".csv":
            return csv.decode(content, source, size, on_error)
    if content:
        raise ValueError(
            f"{source}: unknown format at byte 0; expected AEDAT 2.0, 3.1 or 4, DAT, RAW, .npz, .csv or .bin"
        )
    nothing = np.empty(0, np.int64)
    return checked(Problems(source, on_error), nothing, nothing, nothing, nothing, size or aedat.DVS128, lambda _: 0)
