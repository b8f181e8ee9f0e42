"""CIFAR-10 and CIFAR-100 (A. Krizhevsky, 2009) from the official files, in the binary or the Python layout."""

import hashlib
import io
import pickle
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rheobase.data.dataset import Dataset, Split
from rheobase.data.download import download
from rheobase.data.expectation import expecting
from rheobase.data.fingerprint import fingerprint
from rheobase.files import read_plain
from rheobase.plugins import dataset

SITE = "https://www.cs.toronto.edu/~kriz"
PIXELS = 3 * 32 * 32
CLASSES = {"cifar10": 10, "cifar100": 100}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """One form in which the dataset is distributed. Files map to the MD5 sums of the official files."""

    folder: str
    archive: str
    archive_md5: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    names: str
    """File with the names of the classes."""
    label: int | str
    """Binary: bytes in front of the pixels, the last of which is the label. Python: key of the labels."""
    names_key: str = ""
    names_md5: str = ""
    """MD5 sum of that file if it is a pickle; any other file is refused."""


LAYOUTS = {
    "cifar10": (
        Layout(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
            train={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            },
            test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
            names="batches.meta.txt",
            label=1,
        ),
        Layout(
            folder="cifar-10-batches-py",
            archive="cifar-10-python.tar.gz",
            archive_md5="c58f30108f718f92721af3b95e74349a",
            train={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            test={"test_batch": "40351d587109b95175f43aff81a1287e"},
            names="batches.meta",
            label="labels",
            names_key="label_names",
            names_md5="5ff9c542aee3614f3951f8cda6e48888",
        ),
    ),
    "cifar100": (
        Layout(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            archive_md5="03b5dce01913d631647c71ecec9e9cb8",
            train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
            test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
            names="fine_label_names.txt",
            label=2,
        ),
        Layout(
            folder="cifar-100-python",
            archive="cifar-100-python.tar.gz",
            archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
            train={"train": "16019d7e3df5f24257cddd939b257f8d"},
            test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            names="meta",
            label="fine_labels",
            names_key="fine_label_names",
            names_md5="7973b15100ade9c7d40fb424638fde48",
        ),
    ),
}


@dataset
@expecting(classes=CLASSES["cifar10"], channels=3, size=32, images=50_000)
def cifar10(path: Path, *, download: bool = False) -> Dataset:
    """Load CIFAR-10."""
    return _load("cifar10", path, download)


@dataset
@expecting(classes=CLASSES["cifar100"], channels=3, size=32, images=50_000)
def cifar100(path: Path, *, download: bool = False) -> Dataset:
    """Load CIFAR-100."""
    return _load("cifar100", path, download)


def official_fingerprint(name: str) -> str:
    """Return the fingerprint of the official files. Both layouts hold the same images, so both have the same one."""
    layout = LAYOUTS[name][0]
    return fingerprint(*layout.train.values(), *layout.test.values())


def _load(name: str, folder: Path, wanted: bool) -> Dataset:
    """Load from `folder`, which is or contains the official folder. If `wanted`, download the binary archive to it."""
    found = _find(name, folder)
    if found is None and wanted:
        _get(LAYOUTS[name][0], folder)
        found = _find(name, folder)
    if found is None:
        binary, python = LAYOUTS[name]
        raise ValueError(
            f"no {name} in {folder}: expected {binary.folder} or {python.folder} there; unpack {SITE}/{binary.archive} "
            f"into it, or run 'rheobase data {name} --root {folder} --download'"
        )
    path, layout = found
    train, test = _split(path, layout, layout.train), _split(path, layout, layout.test)
    classes = _class_names(path, layout)
    if len(classes) != CLASSES[name]:
        raise ValueError(
            f"{path / layout.names} has {len(classes)} names, expected {CLASSES[name]}; unpack the archive again"
        )
    return Dataset.of(name, train, test, classes, fingerprint=official_fingerprint(name))


def _find(name: str, folder: Path) -> tuple[Path, Layout] | None:
    for layout in LAYOUTS[name]:
        for path in (folder / layout.folder, folder):
            if (path / next(iter(layout.test))).is_file():
                return path, layout
    return None


def _split(folder: Path, layout: Layout, files: Mapping[str, str]) -> Split:
    """All files at the same time: reading, checksums and copies leave Python's lock to others."""
    with ThreadPoolExecutor(len(files)) as pool:
        parts = list(pool.map(lambda file: _records(folder / file[0], file[1], layout), files.items()))
        images = np.empty((sum(len(part) for _, part in parts), PIXELS), np.uint8)
        ends = np.cumsum([len(part) for _, part in parts])
        places = [images[end - len(part) : end] for end, (_, part) in zip(ends, parts, strict=True)]
        list(pool.map(np.copyto, places, [part for _, part in parts]))
    labels = np.concatenate([part for part, _ in parts])
    return Split(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels))


def _records(path: Path, md5: str, layout: Layout) -> tuple[Bytes, Bytes]:
    """Labels and pixels of a file."""
    content = _read(path, md5)
    if isinstance(layout.label, int):
        size = layout.label + PIXELS
        if not content or len(content) % size:
            raise ValueError(f"{path}: {len(content)} bytes are not whole images of {size}; unpack the archive again")
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        return records[:, layout.label - 1], records[:, layout.label :]
    batch = unpickle(content)
    return np.asarray(batch[layout.label], np.uint8), batch["data"]


def _class_names(folder: Path, layout: Layout) -> tuple[str, ...]:
    path = folder / layout.names
    if layout.names_key:
        return tuple(unpickle(_read(path, layout.names_md5))[layout.names_key])
    try:
        return tuple(read_plain(path).decode().split())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file; unpack the official archive again") from None


def _read(path: Path, md5: str) -> bytes:
    try:
        content = read_plain(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; unpack the official archive again") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise ValueError(f"{path} is not the official file: its checksum differs; unpack the archive again")
    return content


def _get(layout: Layout, folder: Path) -> None:
    packed = folder / layout.archive
    was_there = packed.exists()  # then it is kept
    if not was_there:
        download(f"{SITE}/{layout.archive}", packed, layout.archive_md5)
    elif hashlib.md5(read_plain(packed), usedforsecurity=False).hexdigest() != layout.archive_md5:
        raise ValueError(f"{packed} is not the official archive: its checksum differs; remove it and try again")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    if not was_there:
        packed.unlink()


class _ArraysOnly(pickle.Unpickler):
    """Allow only arrays, lists, strings and numbers: nothing that could run code."""

    ADMITTED = {
        ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
        ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise ValueError(f"the pickle asks for {module}.{name}, which no data file needs; get the official file")
        return self.ADMITTED[module, name]


def unpickle(content: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle of Python 2 or 3 that holds only arrays, lists, strings and numbers."""
    return _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
