"""Read image files, recordings and `.npy` arrays as a network sees them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rheobase.data.arrays import read_npy
from rheobase.data.events import SUFFIXES as RECORDINGS
from rheobase.data.eventset import seen
from rheobase.data.files import SUFFIXES, Files
from rheobase.data.info import DataInfo

ARRAY = ".npy"


def find(paths: Iterable[Path], info: DataInfo) -> list[Path]:
    """Return the given files, and the images or recordings in the given folders, sorted by name."""
    suffixes, what = (RECORDINGS, "recordings") if info.timesteps else (SUFFIXES, "images")
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            visible = (p for p in path.iterdir() if not p.name.startswith("."))
            inside = sorted(p for p in visible if p.suffix.lower() in {*suffixes, ARRAY})
            if not inside:
                few = ", ".join(sorted(suffixes))
                raise ValueError(f"{path}: no {what} in this folder; expected files such as {few}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ValueError(f"{path}: no such file or folder; check the path")
    return found


def read(path: Path, info: DataInfo) -> Tensor:
    """Read one image [1, C, H, W] or recording [T, 1, C, H, W] in the size and range that the network expects."""
    recording = path.suffix.lower() in RECORDINGS
    pixels = _array(path) if path.suffix == ARRAY else seen(path, info) if recording else _picture(path, info)
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    if pixels.shape[-3:] != info.shape or pixels.ndim > 4 or 0 in pixels.shape:
        one = list(info.shape)
        raise ValueError(f"{path}: expected an array {one}, or T of them, got {list(pixels.shape)}")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    return ((pixels - mean) / std).unsqueeze(-4)


def _array(path: Path) -> Tensor:
    with np.errstate(over="ignore"):  # too large values become infinite, and are reported below
        values = read_npy(path).astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"{path}: a value at {np.argwhere(~np.isfinite(values))[0].tolist()} is not a finite number")
    return torch.from_numpy(values)


def _picture(path: Path, info: DataInfo) -> Tensor:
    if info.channels not in (1, 3):
        raise ValueError(
            f"{path}: the network takes {info.channels} channels, but an image has 1 or 3; give "
            f"{'a recording' if info.timesteps else 'a .npy array'}"
        )
    margin = Files.margin if info.name in ("pictures", "imagenet") else 1.0
    (picture,) = Files([path], torch.zeros(1), info.size, margin).read(torch.tensor([0])).float()
    return picture if info.channels == 3 else picture.mean(0, keepdim=True)
