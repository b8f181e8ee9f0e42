"""MNIST (Y. LeCun et al., 1998) and Fashion-MNIST (H. Xiao et al., 2017) from the four official idx files."""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from rheobase import limits
from rheobase.data.dataset import Dataset, Split
from rheobase.data.expectation import expecting
from rheobase.files import first_line, open_plain
from rheobase.plugins import dataset

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@dataset
@expecting(classes=DIGITS, channels=1, size=28, images=60_000)
def mnist(path: Path) -> Dataset:
    """Load MNIST."""
    return _load("mnist", path, "MNIST", DIGITS)


@dataset("fashion-mnist")
@expecting(classes=CLOTHES, channels=1, size=28, images=60_000)
def fashion_mnist(path: Path) -> Dataset:
    """Load Fashion-MNIST."""
    return _load("fashion-mnist", path, "FashionMNIST", CLOTHES)


def _load(name: str, root: Path, folder_of_torchvision: str, classes: tuple[str, ...]) -> Dataset:
    """Load from `root`, or from a folder in it with a usual name. Files may be compressed with gzip."""
    folders = [root, root / name, root / folder_of_torchvision / "raw"]
    folder = next((f for f in folders if any(f.glob("train-images*"))), None)
    if folder is None:
        raise ValueError(
            f"no {name} in {root}: expected train-images-idx3-ubyte and the three other official files; put them there"
        )
    return Dataset.of(name, _split(folder, "train"), _split(folder, "t10k"), classes)


def _split(folder: Path, part: str) -> Split:
    images, labels = read_idx(_find(folder, f"{part}-images", 3)), read_idx(_find(folder, f"{part}-labels", 1))
    if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1] or labels.max() > 9:
        raise ValueError(f"{folder}: expected {part} images of 28 x 28 with one label from 0 to 9 each")
    return Split(images[:, None], labels)


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    for separator in "-.":
        for suffix in ("", ".gz"):
            path = folder / f"{stem}{separator}idx{dimensions}-ubyte{suffix}"
            if path.is_file():
                return path
    raise ValueError(f"{folder / stem}-idx{dimensions}-ubyte is missing; get the four official files")


def read_idx(path: Path) -> Tensor:
    """Read an idx file of bytes: two zeros, type 8, number of dimensions, their big-endian sizes, values."""
    try:
        with open_plain(path) as file, gzip.open(file) if path.suffix == ".gz" else file as content:
            return _idx(content, path)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {first_line(error)}; get the official file again") from None


def _idx(file: BinaryIO | gzip.GzipFile, path: Path) -> Tensor:
    start = file.read(4)
    dimensions = start[3] if start[:3] == b"\0\0\x08" and len(start) > 3 else 0
    sizes = file.read(4 * dimensions)
    if not dimensions or len(sizes) < 4 * dimensions:
        raise ValueError(f"{path}: not an idx file of bytes at byte 0; get the official file again")
    shape = np.frombuffer(sizes, ">u4").tolist()
    if 0 in shape:
        raise ValueError(f"{path}: the array {shape} is empty; get the official file again")
    limits.check(2 * prod(shape), path.stat().st_size, f"{path}: its array {shape}")
    values = bytearray(file.read(prod(shape) + 1))
    if prod(shape) != len(values):
        found = f"{min(len(values), prod(shape))}{' or more' if len(values) > prod(shape) else ''}"
        raise ValueError(
            f"{path}: {found} values from byte {4 + len(sizes)} on, expected {prod(shape)}; get the file again"
        )
    return torch.frombuffer(values, dtype=torch.uint8).view(shape)
