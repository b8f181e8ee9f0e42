"""Images from files, as a network sees them: pictures as in the data sets of folders, and `.npy` arrays."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rheobase.data.files import SUFFIXES, Files
from rheobase.data.info import DataInfo

ARRAY = ".npy"


def find(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and the images in the folders among them, in order of their names."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in {*SUFFIXES, ARRAY})
            if not inside:
                raise ValueError(f"{path}: no images in this folder; expected files like {', '.join(sorted(SUFFIXES))}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ValueError(f"{path}: no such file or folder")
    return found


def read(path: Path, info: DataInfo) -> Tensor:
    """The image [C, H, W] in `path`, in the size and range that the network was trained with."""
    pixels = _array(path) if path.suffix == ARRAY else _picture(path, info)
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    if pixels.shape != info.shape:
        raise ValueError(f"{path}: expected an array {list(info.shape)}, got {list(pixels.shape)}")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    return (pixels - mean) / std


def _array(path: Path) -> Tensor:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(values.astype(np.float32))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a NumPy array: {error}") from error


def _picture(path: Path, info: DataInfo) -> Tensor:
    if info.channels not in (1, 3):
        raise ValueError(f"{path}: the network reads {info.channels} channels, a picture has 1 or 3; give a .npy array")
    margin = Files.margin if info.name == "imagenet" else 1.0
    (picture,) = Files([path], torch.zeros(1), info.size, margin).read(torch.tensor([0])).float()
    return picture if info.channels == 3 else picture.mean(0, keepdim=True)
