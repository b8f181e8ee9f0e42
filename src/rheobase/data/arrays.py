"""Read `.npy` and `.npz` files of numbers without trusting their headers.

`np.load` allocates whatever a header asks for, and fails in many ways on damaged files. These readers check sizes first
and raise only ValueError.
"""

import io
import zipfile
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rheobase import limits
from rheobase.files import first_line, read_plain

NUMBERS = "biuf"
VERSIONS = ((1, 0), (2, 0), (3, 0))
WORK = 40  # bytes of memory per value that later steps need for 64-bit copies and masks

Array = NDArray[Any]


def read_npy(path: Path) -> Array:
    """Read the array in a `.npy` file."""
    try:
        content = read_plain(path)
        file = io.BytesIO(content)
        shape, fortran, dtype = _header(file)
        limits.check(prod(shape) * (dtype.itemsize + WORK), len(content), f"its array {list(shape)}")
        return _values(file.read(), shape, fortran, dtype)
    except Exception as error:  # the header parser fails in many ways
        raise ValueError(f"{path}: not a NumPy array: {first_line(error)}") from None


def from_npz(content: bytes, source: str, names: Iterable[str]) -> dict[str, Array]:
    """Read the arrays with these names, as far as they exist."""
    found, needed = {}, 0
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            for name in names:
                if f"{name}.npy" not in members:
                    continue
                with archive.open(members[f"{name}.npy"]) as file:
                    shape, fortran, dtype = _header(file)
                    needed += prod(shape) * (dtype.itemsize + WORK)
                    limits.check(needed, len(content), f"{name} {list(shape)}")
                    size = prod(shape) * dtype.itemsize
                    # read one byte beyond the end, because the checksum is verified only there
                    found[name] = _values(file.read(size) + file.read(1), shape, fortran, dtype)
    except Exception as error:  # zipfile fails in many ways too
        raise ValueError(
            f"{source}: not a complete .npz file of arrays ({first_line(error)}); get the file again"
        ) from None
    return found


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in VERSIONS:
        raise ValueError(f"expected version {VERSIONS} of the format, got {version}")
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    if dtype.kind not in NUMBERS or dtype.itemsize > 8:
        raise ValueError(f"expected numbers, got {dtype}")
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"expected sizes, got {shape}")
    return shape, fortran, dtype


def _values(content: bytes, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> Array:
    if len(content) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes do not fit {dtype}{list(shape)}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
