"""N-MNIST (G. Orchard et al., 2015): MNIST digits seen by a moving camera of 34 x 34 pixels.

The official dataset has folders Train and Test with one folder of .bin files per digit. An .npz file of many recordings
works too: arrays t, x, y, p, the offsets of the recordings, their labels, and is_test.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheobase.data.arrays import from_npz
from rheobase.data.cache import Recordings
from rheobase.data.events import binary, npz
from rheobase.data.eventset import EventDataset, Option, Slicing, build, jobs_of_files, sliced
from rheobase.data.expectation import expecting
from rheobase.files import read_plain
from rheobase.plugins import dataset

CLASSES = tuple("0123456789")


@dataset
@expecting(classes=CLASSES, channels=2, size=34, timesteps=6, images=60_000)
def nmnist(path: Path, *, size: int = 0, timesteps: int = 0, **slicing: Option) -> EventDataset:
    """Load N-MNIST: 6 slices of 50 ms at full size, two for each of the three movements of the camera."""
    cut = Slicing(window=50_000, timesteps=6, size=34).changed(size=size, timesteps=timesteps, **slicing)
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        job = partial(_from_arrays, arrays, str(path), cut)
        labels, is_test = arrays["labels"].tolist(), arrays["is_test"].astype(bool).tolist()
        return build("nmnist", CLASSES, labels, is_test, cut, [job], files=[path])
    files: list[Path] = []
    labels, is_test = [], []
    for part in ("Train", "Test"):
        for label, name in enumerate(CLASSES):
            paths = sorted((path / part / name).glob("*.bin"))
            if not paths:
                raise ValueError(
                    f"no N-MNIST in {path}: expected .bin files in {path / part / name}; unpack Train.zip and Test.zip"
                )
            files += paths
            labels += [label] * len(paths)
            is_test += [part == "Test"] * len(paths)
    return build("nmnist", CLASSES, labels, is_test, cut, jobs_of_files(files, cut), files=files)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file of many recordings."""
    try:
        content = read_plain(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; check the path") from None
    names = ("t", "x", "y", "p", "offsets", "labels", "is_test")
    arrays = from_npz(content, str(path), names)
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"{path}: no array {missing[0]}; expected {', '.join(names)}")
    for name in ("offsets", "labels", "is_test"):
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iub":
            found = f"{arrays[name].dtype}{list(arrays[name].shape)}"
            raise ValueError(f"{path}: expected {name} to be a row of whole numbers, got {found}")
        arrays[name] = arrays[name].astype(np.int64)
    offsets, number = arrays["offsets"], len(arrays["labels"])
    if len(offsets) != number + 1 or len(arrays["is_test"]) != number or (np.diff(offsets) < 0).any():
        raise ValueError(f"{path}: expected rising offsets, and one label and one is_test per pair of neighbours")
    labels_fit = number and 0 <= arrays["labels"].min() <= arrays["labels"].max() < len(CLASSES)
    if not labels_fit or offsets[0] != 0 or offsets[-1] != len(arrays["t"]):
        raise ValueError(f"{path}: expected offsets from 0 to the number of events, and labels from 0 to 9")
    return arrays


def _from_arrays(arrays: dict[str, NDArray[Any]], source: str, slicing: Slicing) -> Recordings:
    recordings = [
        npz.from_arrays({name: arrays[name][a:b] for name in "txyp"}, source, binary.NMNIST, "skip")
        for a, b in pairwise(arrays["offsets"].tolist())
    ]
    return sliced(recordings, slicing)
