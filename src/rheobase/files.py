"""Atomic writes, safe reads of plain files, and strict JSON."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` at the end. If anything fails, `path` stays as it was.

    A symbolic link at `path` is replaced, not followed: a folder from elsewhere may contain links.
    """
    if path.exists() and not path.is_file() and not path.is_symlink():
        raise ValueError(f"{path} is not a plain file and cannot be replaced; choose another path")
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")  # unique, as another process may write the same file
    try:
        yield part
        part.replace(path)
    except OSError as error:
        error.filename = str(path)  # the name that the user knows
        raise
    finally:
        with suppress(OSError):
            part.unlink()


def open_plain(path: str | Path) -> BinaryIO:
    """Open a plain file for reading. Raise a ValueError for a FIFO or a device: reading it may never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(f"{path} is {'a folder, not a file' if stat.S_ISDIR(mode) else 'not a plain file'}")
    return open(descriptor, "rb")


def read_plain(path: str | Path) -> bytes:
    """Return the content of a plain file."""
    with open_plain(path) as file:
        return file.read()


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text. Raise a ValueError for any kind of damage."""

    def refuse(constant: str) -> None:
        raise ValueError(f"it contains {constant}, which is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error from another library."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as strict JSON, one entry per line."""
    text = strict_json(content, path.name, indent=1) + "\n"
    with atomic_write(path) as part:
        part.write_text(text)


def strict_json(content: Any, name: str, *, indent: int | None = None) -> str:
    """Return `content` as JSON. Raise a ValueError that says where in `name` a NaN or an infinity is."""
    for place, value in _numbers(content, name):
        if not isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON cannot hold; use None for an unknown number")
    return json.dumps(content, indent=indent, allow_nan=False)


def finite_or_null(content: Any) -> Any:
    """Return `content` with None in place of NaN and infinities."""
    if isinstance(content, dict):
        return {key: finite_or_null(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite_or_null(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def _numbers(content: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _numbers(value, f"{place}[{key!r}]")
    elif isinstance(content, list | tuple):
        for i, value in enumerate(content):
            yield from _numbers(value, f"{place}[{i}]")
    elif isinstance(content, float):
        yield place, content
