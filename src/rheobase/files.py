"""Files that are there as a whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place at the end; after a failure the old one is as it was."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}; choose another place, or make room") from error
    finally:
        part.unlink(missing_ok=True)
