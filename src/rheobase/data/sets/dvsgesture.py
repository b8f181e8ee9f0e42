"""DVS-Gesture (A. Amir et al., 2017): hand gestures recorded by a DVS128, several in every AEDAT 3.1 file.

The official folder has a CSV file of labelled times next to every recording, and two lists of the recordings for
training and testing: 1176 and 288 gestures.
"""

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

from rheobase.data.cache import Recordings
from rheobase.data.events import read
from rheobase.data.eventset import EventDataset, Option, Slicing, build, sliced
from rheobase.data.expectation import expecting
from rheobase.files import read_plain
from rheobase.plugins import dataset

CLASSES = (
    "hand clapping", "right hand wave", "left hand wave", "right arm clockwise", "right arm counter-clockwise",
    "left arm clockwise", "left arm counter-clockwise", "arm roll", "air drums", "air guitar", "other",
)  # fmt: skip
LISTS = ("trials_to_train.txt", "trials_to_test.txt")
FOLDER = "DvsGesture"

Clip = tuple[int, int, int]  # label, start and end in microseconds


@dataset
@expecting(classes=CLASSES, channels=2, size=32, timesteps=40, images=1176)
def dvsgesture(path: Path, *, size: int = 0, timesteps: int = 0, **slicing: Option) -> EventDataset:
    """Load DVS-Gesture as in the paper: 40 slices of 30 ms from the labelled start, 32 x 32."""
    cut = Slicing(window=30_000, timesteps=40, size=32).changed(size=size, timesteps=timesteps, **slicing)
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files, labels, is_test, jobs = [], [], [], []
    for name in LISTS:
        for trial in _trials(folder, name):
            table = trial.with_name(f"{trial.stem}_labels.csv")
            clips = read_labels(table)
            files += [trial, table]
            labels += [label for label, _, _ in clips]
            is_test += [name == LISTS[1]] * len(clips)
            jobs.append(partial(_from_file, trial, clips, cut))
    return build("dvsgesture", CLASSES, labels, is_test, cut, jobs, files=files)


def read_labels(path: Path) -> list[Clip]:
    """Return class, start and end of every gesture in a recording."""
    try:
        rows = list(csv.reader(read_plain(path).decode().splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {error}; unpack the official files again") from None
    if rows and rows[0] and all(value.strip().isdecimal() for value in rows[0]):
        raise ValueError(f"{path}, line 1: expected headings, got numbers; unpack the official files again")
    clips = []
    for line, row in enumerate(rows[1:], 2):
        try:
            number, start, end = (int(value) for value in row)
        except ValueError:
            raise ValueError(f"{path}, line {line}: expected class, start and end as three whole numbers") from None
        if not (1 <= number <= len(CLASSES) and 0 <= start < end < 2**62):
            raise ValueError(f"{path}, line {line}: expected a class from 1 to {len(CLASSES)} and start before end")
        clips.append((number - 1, start, end))
    return clips


def _trials(folder: Path, name: str) -> list[Path]:
    try:
        names = (folder / name).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ValueError(
            f"no DVS-Gesture in {folder}: cannot read {name} ({reason}); unpack DvsGesture.tar.gz there"
        ) from None
    paths = [folder / trial for trial in names]
    if missing := [path for path in paths if not path.is_file()]:
        raise ValueError(f"{folder / name} lists {missing[0].name}, which is missing; unpack the official files again")
    return paths


def _from_file(path: Path, clips: list[Clip], slicing: Slicing) -> Recordings:
    events = read(path, on_error="skip")
    result = sliced([events.between(a, b) for _, a, b in clips], slicing, [a for _, a, _ in clips])
    empty = result.events.count(0)
    return replace(result, skipped={**events.skipped, **({"gestures without events": empty} if empty else {})})
