"""One process at a time works on the folder of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which is made if it is not there; the system releases it however the process ends."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # not through a link, whose target would be somebody else's
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        what = f"cannot write to {error.filename}: {error.strerror}"
        raise OSError(f"{what}; choose another folder with --out") from error
    try:
        if not _locked(handle) or not _is_still(path, handle):
            raise ValueError(f"{folder} is being trained by another process; wait for its end")
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        import fcntl

        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        pass  # a system or a file system without locks
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Whether the file is the one at `path`: the run may just have been removed by who failed to begin it."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False
