"""Images from files, as a network sees them: Pillow (an extra) reads pictures, NumPy reads `.npy` arrays."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".npy", ".png", ".ppm", ".webp")


def find(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and the images in the folders among them, in order of their names."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise ValueError(f"{path}: no images in this folder; expected files like {', '.join(SUFFIXES)}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ValueError(f"{path}: no such file or folder")
    return found


def read(path: Path, info: Mapping[str, Any]) -> Tensor:
    """The image [C, H, W] in `path`, in the size and range that the network was trained with."""
    channels, height, width = info["shape"]
    pixels = _array(path, channels) if path.suffix == ".npy" else _picture(path, channels, height, width)
    if pixels.shape != (channels, height, width):
        raise ValueError(f"{path}: expected an array {[channels, height, width]}, got {list(pixels.shape)}")
    mean, std = (torch.tensor(info[key]).view(-1, 1, 1) for key in ("mean", "std"))
    return (torch.from_numpy(pixels.astype(np.float32)) - mean) / std


def _array(path: Path, channels: int) -> np.ndarray:
    try:
        pixels = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a NumPy array: {error}") from error
    return pixels[None] if pixels.ndim == 2 and channels == 1 else pixels


def _picture(path: Path, channels: int, height: int, width: int) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("reading pictures needs the package pillow; install rheobase[images]") from error
    if channels not in (1, 3):
        raise ValueError(f"{path}: the network reads {channels} channels, a picture has 1 or 3; give a .npy array")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                small = picture.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{path}: not a picture that can be read: {error}") from error
    pixels = np.asarray(small)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
