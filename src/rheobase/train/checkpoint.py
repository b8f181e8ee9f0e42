"""Checkpoints that survive a kill at any moment and never run code when loaded.

A checkpoint is a folder named after its step. It holds safetensors files, `state.json`, and `SHA256SUMS` with the
checksums of all of them. It is written under a temporary name and renamed when complete. Files larger than `part_bytes`
are split into parts, which `cat` joins again.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from rheobase.files import first_line, parse_json, read_plain
from rheobase.train import tensorfile
from rheobase.train.record import checksum

KEEP = 2
SUMS = "SHA256SUMS"
DAMAGED = ".damaged"

Tensors = dict[str, Tensor]
Chunks = list[memoryview]


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    path: Path
    step: int
    tensors: dict[str, Tensors]
    """The tensors of every safetensors file, by its name without suffix."""
    state: dict[str, Any]

    @property
    def weights(self) -> Tensors:
        """Weights of the network. Files hold those with `units` as integers, in units of their output channel."""
        units = self.tensors.get("units", {})
        try:
            return {
                name: t * units[name].view(-1, *[1] * (t.ndim - 1)) if name in units else t
                for name, t in self.tensors["weights"].items()
            }
        except RuntimeError:
            raise ValueError(f"checkpoint {self.path} is damaged: its units do not fit its weights") from None

    def sha256(self) -> str:
        """Return the checksum of the weights file, whether it is whole or in parts."""
        return checksum(sorted(self.path.glob("weights.safetensors*")))


def save(
    folder: Path, step: int, tensors: dict[str, Tensors], state: dict[str, Any], *, part_bytes: int | None = None
) -> Path:
    """Write checkpoint `step` into `folder`. Remove all but the newest `KEEP` checkpoints. Return its path."""
    path = place(folder, step)
    files = {f"{name}.safetensors": tensorfile.chunks(group) for name, group in tensors.items()}
    text = json.dumps(state, indent=1, sort_keys=True, allow_nan=False) + "\n"
    files["state.json"] = [memoryview(text.encode())]
    pieces = {piece: content for name, data in files.items() for piece, content in _pieces(name, data, part_bytes)}
    temporary = folder / f".{path.name}.incomplete"
    try:
        folder.mkdir(exist_ok=True)  # without parents: a run that was removed must not come back incomplete
        _remove(temporary)
        temporary.mkdir()
        for name, content in pieces.items():
            _write(temporary / name, content)
        _write(temporary / SUMS, [memoryview(_sums(pieces))])
        _remove(path)
        temporary.rename(path)
        _flush_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"could not write checkpoint {path}: {error.strerror}{intact(folder)}") from error
    for old in _steps(folder)[KEEP:]:
        _remove(old)
    return path


def place(folder: Path, step: int) -> Path:
    """Return the path of checkpoint `step` in `folder`."""
    return folder / f"{step:08d}"


def load(path: Path) -> Checkpoint:
    """Return the checkpoint at `path`. Raise a ValueError if it is damaged."""
    try:
        pieces = {p.name: read_plain(p) for p in sorted(path.iterdir()) if p.name != SUMS}
        if (path / SUMS).read_bytes() != _sums({name: [memoryview(content)] for name, content in pieces.items()}):
            raise ValueError(f"checkpoint {path} is damaged: its files do not match {SUMS}")
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be read: {error.strerror}") from None
    files: dict[str, bytes] = {}
    for name, content in pieces.items():
        whole = name.partition(".part")[0]
        files[whole] = files.get(whole, b"") + content
    try:
        state = parse_json(files.pop("state.json"))
        tensors = {name.removesuffix(".safetensors"): safetensors.torch.load(data) for name, data in files.items()}
        if not isinstance(state, dict) or "weights" not in tensors:
            raise ValueError("it has no state or no weights")
        return Checkpoint(path, int(path.name), tensors, state)
    except Exception as error:  # the checksums match, but it is not one of ours
        raise ValueError(f"checkpoint {path} is damaged: {first_line(error)}") from None


def latest(folder: Path, *, set_aside: bool = False) -> Checkpoint | None:
    """Return the newest good checkpoint in `folder`, or None if nothing was saved. Warn about every damaged one.

    If `set_aside`, rename newer damaged ones to NUMBER.damaged, so that training can continue from the good one.
    """
    paths = _steps(folder)
    for i, path in enumerate(paths):
        try:
            found = load(path)
        except ValueError as error:
            warnings.warn(f"{error}; trying the previous one", stacklevel=2)
            continue
        for damaged in paths[:i] if set_aside else []:
            put_aside(damaged)
        return found
    if paths:
        raise ValueError(f"no checkpoint in {folder} is usable; start the run again in another folder")
    return None


def put_aside(path: Path) -> None:
    """Rename the damaged checkpoint at `path`, so that it is not used again."""
    aside = path.with_suffix(DAMAGED)
    _remove(aside)
    path.rename(aside)


def intact(folder: Path) -> str:
    """Return what to add to an error if `folder` holds checkpoints to continue from."""
    return "; earlier checkpoints are intact" if _steps(folder) else ""


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint in `folder`; 0 if nothing was trained yet."""
    return max((int(path.name) for path in _steps(folder)), default=0)


def _steps(folder: Path) -> list[Path]:
    """Return the paths of all checkpoints, newest first."""
    if not folder.is_dir():
        return []
    found = (p for p in folder.iterdir() if re.fullmatch("[0-9]{1,18}", p.name))
    return sorted(found, key=lambda p: int(p.name), reverse=True)


def _pieces(name: str, data: Chunks, part_bytes: int | None) -> Iterator[tuple[str, Chunks]]:
    """Yield the name and content of a file, or of its parts."""
    size = sum(map(len, data))
    if part_bytes is None or size <= part_bytes:
        yield name, data
        return
    for i, start in enumerate(range(0, size, part_bytes)):
        yield f"{name}.part{i:04d}", list(_cut(data, start, start + part_bytes))


def _cut(data: Chunks, start: int, stop: int) -> Iterator[memoryview]:
    for chunk in data:
        yield chunk[max(start, 0) : max(stop, 0)]
        start, stop = start - len(chunk), stop - len(chunk)


def _sums(pieces: dict[str, Chunks]) -> bytes:
    lines = []
    for name in sorted(pieces):
        digest = hashlib.sha256()
        for chunk in pieces[name]:
            digest.update(chunk)
        lines.append(f"{digest.hexdigest()}  {name}\n")
    return "".join(lines).encode()


def _write(path: Path, content: Chunks) -> None:
    with open(path, "xb") as file:
        for chunk in content:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
