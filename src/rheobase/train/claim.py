"""Lock the folder of a run, so that one process at a time works on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which is created if necessary. The system releases it however the process ends."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # O_NOFOLLOW: the target of a symbolic link would be someone else's file
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        what = f"cannot write to {error.filename}: {error.strerror}"
        raise OSError(f"{what}; choose another folder with --out") from error
    try:
        if not _locked(handle) or not _is_still(path, handle):
            raise ValueError(f"{folder} is being trained by another process; wait until it ends")
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
        pass  # this system or file system has no locks
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Return whether the locked file is still at `path`: a process that failed may just have removed the run."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False
