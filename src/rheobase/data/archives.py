"""Read images inside tar archives by offset, without unpacking."""

import os
import tarfile
from collections.abc import Iterator
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rheobase.files import first_line, open_plain


class Member(NamedTuple):
    """A file inside an archive: `size` bytes from byte `offset` on."""

    archive: Path
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.name} in {self.archive}"


Place = Path | Member


def name_of(place: Place) -> str:
    """Return the name of a file."""
    return place.name if isinstance(place, Member) else str(place)


def size_of(place: Place) -> int:
    """Return the size of a file in bytes."""
    return place.size if isinstance(place, Member) else os.stat(place).st_size


def read(place: Place, start: int = 0, length: int = -1) -> bytes:
    """Read up to `length` bytes from byte `start` on, or all of them."""
    with open_plain(place.archive if isinstance(place, Member) else place) as file:
        first, size = (place.offset, place.size) if isinstance(place, Member) else (0, os.fstat(file.fileno()).st_size)
        file.seek(first + start)
        rest = max(0, size - start)
        return file.read(rest if length < 0 else min(length, rest))


def members(archive: Path, inside: Member | None = None) -> Iterator[Member]:
    """Yield the files of a tar archive, or of an archive `inside` it, in their order."""
    with open_plain(archive) as file:
        source: BinaryIO = file if inside is None else _Part(file, inside)  # type: ignore[assignment]
        begin = 0 if inside is None else inside.offset
        stop = os.fstat(file.fileno()).st_size if inside is None else begin + inside.size
        try:
            with tarfile.open(fileobj=source, mode="r:") as tar:
                at = -1
                while (entry := tar.next()) is not None:
                    if tar.offset <= at:  # a negative size, which would loop for ever
                        raise tarfile.ReadError("it points back into itself")
                    at = tar.offset
                    if not is_text(entry.name):
                        raise tarfile.ReadError(f"{entry.name[:60]!r} is not a name in UTF-8")
                    if entry.isreg() and begin + entry.offset_data + max(0, entry.size) > stop:
                        raise tarfile.ReadError(f"{entry.name[:60]!r} is cut short")
                    tar.members = []  # type: ignore[attr-defined]  # otherwise it keeps a million entries
                    if entry.isreg() and not entry.issparse():
                        yield Member(archive, entry.name, begin + entry.offset_data, entry.size)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, AttributeError) as error:
            what = f"not a complete tar archive ({first_line(error)})"
            raise ValueError(f"{inside or archive}: {what}; get it again") from None


def is_text(name: str) -> bool:
    """Whether a name is UTF-8. Python keeps other bytes in it as halves of characters, which nobody can write."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Part(RawIOBase):
    """The bytes of a member as a separate file."""

    def __init__(self, file: BinaryIO, member: Member) -> None:
        self.file, self.member, self.at = file, member, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.member.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1, /) -> bytes:
        rest = max(0, self.member.size - self.at)
        self.file.seek(self.member.offset + self.at)
        found = self.file.read(rest if size < 0 else min(size, rest))
        self.at += len(found)
        return found


class Writer:
    """Writes a tar archive of plain files. The same files always give the same bytes."""

    def __init__(self, path: Path) -> None:
        self.tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 (closed by `close`)
        self.bytes = 0

    def add(self, name: str, content: bytes) -> int:
        """Add a file; return the offset of its content."""
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        self.tar.addfile(entry, BytesIO(content))
        self.bytes = self.tar.offset
        return self.bytes - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def close(self) -> None:
        """Finish the archive."""
        self.tar.close()
