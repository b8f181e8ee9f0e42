"""Files that are there as a whole or not at all, and JSON that every reader understands."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4


@contextmanager
def atomic_write(path: Path, *, follow: bool = True) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place at the end; after a failure the old one is as it was.

    A link goes on pointing to its file, which is replaced; unless we do not `follow` it: then the link is.
    """
    target = path.resolve() if follow else path
    if target.exists() and not target.is_file() and not target.is_symlink():
        raise ValueError(f"{path} is not a file that could be replaced; choose another")
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")  # others may write the same one
    try:
        yield part
        part.replace(target)
    except OSError as error:
        error.filename = str(path)  # the name that is known
        raise
    finally:
        with suppress(OSError):
            part.unlink()


def write_json(path: Path, content: Any, *, follow: bool = True) -> None:
    """Write `content` to `path` as strict JSON, one entry per line; for `follow` see `atomic_write`."""
    text = strict_json(content, path.name, indent=1) + "\n"
    with atomic_write(path, follow=follow) as part:
        part.write_text(text)


def strict_json(content: Any, name: str, *, indent: int | None = None) -> str:
    """`content` as JSON. NaN and infinities, which JSON does not have, are an error that says where in `name`."""
    for place, value in _numbers(content, name):
        if not isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON cannot hold; write None for a number that is not known")
    return json.dumps(content, indent=indent, allow_nan=False)


def finite_or_null(content: Any) -> Any:
    """`content` with None instead of NaN and infinities."""
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
