"""Read HDF5 files with h5py, without trusting them.

Links, storage in other files, foreign compression and sizes too large for the file are refused before any memory is
spent on them.
"""

import zlib
from math import prod
from os import SEEK_END
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheobase import limits
from rheobase.extras import need
from rheobase.files import open_plain

MOST_TEXTS = 2**14  # in one array; the edges of a graph are the longest array of texts
ADDRESSES = (8, 8)  # bytes of an address and of a size; the default of HDF5
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])  # to a text elsewhere in the file


def package() -> Any:
    """Return h5py, or raise an error that says how to install it."""
    return need("h5py", "reading NIR files")


class Reader:
    """Reads plain arrays and texts: at most `budget` bytes, and nothing from outside the file."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def child(self, parent: Any, name: str) -> Any:
        """Return a group or dataset, not what a link refers to."""
        h5py = package()
        link = parent.get(name, getlink=True)
        if link is None:
            raise ValueError(f"'{parent.name}/{name}' is missing")
        if type(link) is not h5py.HardLink:
            raise ValueError(f"'{parent.name}/{name}' is a link")
        return parent[name]

    def group(self, parent: Any, name: str) -> Any:
        """Return a group."""
        child = self.child(parent, name)
        if not isinstance(child, package().Group):
            raise ValueError(f"'{parent.name}/{name}' is not a group")
        return child

    def names(self, parent: Any, name: str) -> list[str]:
        """Return the names in a group."""
        return list(self.group(parent, name))

    def is_text(self, parent: Any, name: str) -> bool:
        """Return whether a dataset holds texts."""
        return package().check_string_dtype(self.child(parent, name).dtype) is not None

    def text(self, parent: Any, name: str) -> str:
        """Return a single text."""
        return str(self.strings(parent, name).item())

    def strings(self, parent: Any, name: str) -> NDArray[Any]:
        """Return an array of texts."""
        data = self.child(parent, name)
        if not self.is_text(parent, name):
            raise ValueError(f"'{parent.name}/{name}' is not a text")
        self._pay(data)
        if data.chunks or data.size > MOST_TEXTS:  # a few compressed bytes could stand for many long texts
            raise ValueError(f"'{data.name}' has {data.size} texts, or stores them in chunks")
        if package().check_string_dtype(data.dtype).length is None:
            self._measure(data)
        found = np.empty(data.shape, dtype=object)
        for place in np.ndindex(data.shape):  # one by one: many entries may refer to the same long text
            found[place] = data.asstr()[place]
            self._spend(4 * len(found[place]), data.name)
        return found

    @staticmethod
    def _measure(data: Any) -> None:
        """Raise a ValueError if a text claims more bytes than the file has. HDF5 would allocate them unchecked."""
        start = data.id.get_offset()
        if start is None or data.file.id.get_create_plist().get_sizes() != ADDRESSES:
            raise ValueError(f"'{data.name}' stores its texts in an unsupported way")
        with open_plain(data.file.filename) as file:
            size = file.seek(0, SEEK_END)
            file.seek(start)
            content = file.read(REFERENCE.itemsize * data.size)
        if len(content) < REFERENCE.itemsize * data.size:
            raise ValueError(f"'{data.name}' is cut short")
        longest = np.frombuffer(content, REFERENCE)["length"].max(initial=0)
        if longest > size:
            raise ValueError(f"'{data.name}' claims a text of {longest} bytes, more than the file has")

    def array(self, parent: Any, name: str) -> NDArray[Any]:
        """Return an array of finite numbers."""
        data = self.child(parent, name)
        if data.dtype.kind not in "fiu":
            raise ValueError(f"'{parent.name}/{name}' does not hold numbers")
        self._pay(data)
        values = self._inflate(data) if data.compression == "gzip" else np.asarray(data[()])
        if not np.isfinite(values).all():
            raise ValueError(f"'{parent.name}/{name}' is not finite")
        return values

    def _pay(self, data: Any) -> None:
        """Check how a dataset is stored, and take its size from the budget."""
        if data.external or data.is_virtual:
            raise ValueError(f"'{data.name}' is stored in another file")
        if data.compression not in (None, "gzip") or data.shuffle or data.fletcher32 or data.scaleoffset is not None:
            raise ValueError(f"'{data.name}' is compressed in an unsupported way")
        self._spend(max(data.nbytes, prod(data.chunks or ()) * data.dtype.itemsize), data.name)

    def _spend(self, size: int, name: str) -> None:
        self.budget -= 2 * size  # once as stored, once as used
        if self.budget < 0:
            raise ValueError(
                f"'{name}' claims {size} bytes, too many for a file of this size; if you trust it, set "
                f"{limits.VARIABLE} to more MiB"
            )

    @staticmethod
    def _inflate(data: Any) -> NDArray[Any]:
        """Unpack gzip here, because HDF5 would let a chunk grow beyond its declared size."""
        values = np.zeros(data.shape, data.dtype)
        size = prod(data.chunks) * data.dtype.itemsize
        for index in range(data.id.get_num_chunks()):
            offset = data.id.get_chunk_info(index).chunk_offset
            skipped, packed = data.id.read_direct_chunk(offset)
            unpacked = packed if skipped else zlib.decompressobj().decompress(packed, size + 1)
            if len(unpacked) != size:
                raise ValueError(f"'{data.name}' has a chunk of the wrong size")
            chunk = np.frombuffer(unpacked, data.dtype).reshape(data.chunks)
            place = tuple(slice(o, o + c) for o, c in zip(offset, data.chunks, strict=True))
            values[place] = chunk[tuple(slice(0, n) for n in values[place].shape)]
        return values
