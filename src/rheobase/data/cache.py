"""Cache of sliced recordings: computed once on all cores, stored with a checksum, then memory-mapped.

The name of an entry is a digest of everything that it depends on, so an entry never changes. A finished folder is
renamed into place: several processes may make the same entry, and the first to finish wins.
"""

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from rheobase.data.workers import cores
from rheobase.files import parse_json

VERSION = 3  # of the slicing
ABANDONED = 24 * 3600  # seconds after which an unfinished entry counts as abandoned


@dataclass(frozen=True)
class Recordings:
    """Frames [n, T, C, H, W] of n recordings, and facts about the recordings."""

    frames: Tensor
    events: list[int]
    seconds: list[float]
    """From the first to the last event of every recording."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Damage in the files: how often each kind of problem occurred."""
    uncounted: int = 0
    """Events above the 255 that a cell can count."""


def folder() -> Path:
    """Return the cache folder: $RHEOBASE_CACHE, or rheobase in the user's cache folder."""
    if own := os.environ.get("RHEOBASE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rheobase"


def prepared(
    name: str,
    shape: tuple[int, ...],
    parameters: dict[str, Any],
    files: Iterable[Path],
    jobs: Sequence[Callable[[], Recordings]],
) -> Recordings:
    """Return the frames that the jobs make, joined to `shape` [N, T, C, H, W], from the cache if they are there."""
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    identity = json.dumps([VERSION, name, shape, parameters, stamps], sort_keys=True)
    entry = folder() / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:20]}"
    try:
        found = _open(entry, shape)
        if found is None:
            _make(entry, name, shape, jobs)
            found = _open(entry, shape)
    except OSError as error:
        raise OSError(
            f"cannot store slices in {folder()}: {error.strerror}; set RHEOBASE_CACHE to another folder"
        ) from error
    if found is None:
        raise OSError(f"{entry} is damaged and cannot be replaced; remove it, or set RHEOBASE_CACHE to another folder")
    return found


def _open(entry: Path, shape: tuple[int, ...]) -> Recordings | None:
    if not entry.is_dir():
        return None
    try:
        about = parse_json((entry / "about.json").read_bytes())
        stated = about.pop("sha256")
        with open(entry / "frames.bin", "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if _with_facts(digest, about) == stated:
            return Recordings(frames=_mapped(entry / "frames.bin", shape), **about)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pass
    shutil.rmtree(entry, ignore_errors=True)  # damaged, so it is made again
    return None


def _mapped(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Map the file to private pages, so that nothing can write to it."""
    return torch.from_file(str(path), shared=False, size=prod(shape), dtype=torch.uint8).view(shape)


def _make(entry: Path, name: str, shape: tuple[int, ...], jobs: Sequence[Callable[[], Recordings]]) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    for left_over in entry.parent.glob(f".{entry.name}-*"):  # from killed processes
        with suppress(FileNotFoundError):  # it may be finished by now
            if time.time() - left_over.stat().st_mtime > ABANDONED:
                shutil.rmtree(left_over, ignore_errors=True)
    unfinished = entry.with_name(f".{entry.name}-{uuid4().hex}")
    unfinished.mkdir()
    try:
        events: list[int] = []
        seconds: list[float] = []
        skipped: Counter[str] = Counter()
        uncounted, digest = 0, hashlib.sha256()
        with open(unfinished / "frames.bin", "wb") as file, ThreadPoolExecutor(cores()) as threads:
            results = threads.map(lambda job: job(), jobs)
            console = Console(stderr=True)
            quiet = not console.is_terminal
            try:
                for part in track(results, f"preparing {name}", len(jobs), console=console, disable=quiet):
                    assert part.frames.shape[1:] == shape[1:]
                    content = part.frames.numpy().tobytes()
                    file.write(content)
                    digest.update(content)
                    events += part.events
                    seconds += part.seconds
                    skipped.update(part.skipped)
                    uncounted += part.uncounted
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        assert len(events) == shape[0]
        about = {"events": events, "seconds": seconds, "skipped": dict(skipped), "uncounted": uncounted}
        (unfinished / "about.json").write_text(json.dumps({"sha256": _with_facts(digest, about), **about}))
        try:
            unfinished.rename(entry)
        except OSError:
            if not entry.is_dir():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _with_facts(digest: "hashlib._Hash", about: dict[str, Any]) -> str:
    """Return the checksum of the frames and of the facts about them."""
    digest.update(json.dumps(about, sort_keys=True).encode())
    return digest.hexdigest()
