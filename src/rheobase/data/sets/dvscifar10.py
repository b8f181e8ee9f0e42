"""DVS-CIFAR10 (H. Li et al., 2017): 1000 recordings of moving CIFAR-10 images per class, AEDAT 2.0 of a DVS128.

The official dataset has one folder per class with files cifar10_<class>_<number>.aedat and no split. Our split is fixed
and balanced: in each class, every tenth recording by number is for testing, which gives 9000 / 1000. `split="first"`
tests on the first 100 of each 1000, as other papers do.
"""

import re
from pathlib import Path

from rheobase.data.eventset import EventDataset, Option, Slicing, build, jobs_of_files
from rheobase.data.expectation import expecting
from rheobase.plugins import dataset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = ("tenth", "first")


@dataset
@expecting(classes=CLASSES, channels=2, size=42, timesteps=10, images=9000)
def dvscifar10(
    path: Path, *, size: int = 0, timesteps: int = 0, split: str = "tenth", **slicing: Option
) -> EventDataset:
    """Load DVS-CIFAR10 as in the paper: 10 slices of 5 ms from the first event on, 42 x 42."""
    cut = Slicing(window=5_000, timesteps=10, size=42).changed(size=size, timesteps=timesteps, **slicing)
    files: list[Path] = []
    labels: list[int] = []
    is_test: list[bool] = []
    for label, name in enumerate(CLASSES):
        paths = sorted((path / name).glob("*.aedat"), key=_number)
        if not paths:
            raise ValueError(
                f"no DVS-CIFAR10 in {path}: expected recordings in {path / name}; unpack the official files"
            )
        files += paths
        labels += [label] * len(paths)
        is_test += held_out(len(paths), split)
    return build("dvscifar10", CLASSES, labels, is_test, cut, jobs_of_files(files, cut), files=files)


def held_out(number: int, split: str) -> list[bool]:
    """Return which of the `number` recordings of a class are for testing."""
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got '{split}'")
    return [i < number // 10 if split == "first" else i % 10 == 9 for i in range(number)]


def _number(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.stem)
    return int(digits[-1]) if digits else -1, path.name
