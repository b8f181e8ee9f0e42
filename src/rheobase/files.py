"""Files that are there as a whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place at the end; after a failure the old one is as it was."""
    target = path.resolve()  # a link goes on pointing to its file
    if target.exists() and not target.is_file():
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
