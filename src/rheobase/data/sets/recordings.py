"""Your own recordings: a folder with one sub-folder per class, or with two such folders, `train` and `val`.

All file formats that `events.read` supports, and sensors of any size, may be mixed.
"""

import warnings
from functools import partial
from pathlib import Path

from rheobase.data.events import SUFFIXES
from rheobase.data.eventset import EventDataset, Option, Slicing, build, own_recording
from rheobase.data.expectation import expecting
from rheobase.data.folders import flat, held_out, split
from rheobase.plugins import dataset

CLIPPED = 0.01  # warn if more than this fraction of the events is above what a cell can count


@dataset
@expecting(classes=10, channels=2, size=32, timesteps=16)
def recordings(path: Path, *, size: int = 0, timesteps: int = 0, **slicing: Option) -> EventDataset:
    """Load recordings as 16 slices of 32 x 32. By default, a whole recording is cut into slices of equal duration."""
    cut = Slicing(window=0, timesteps=16, size=32).changed(size=size, timesteps=timesteps, **slicing)
    train, test = split(path, SUFFIXES, "recordings")
    (files, labels), (test_files, test_labels) = flat(train), flat(test)
    is_test = [False] * len(files) + [True] * len(test_files)
    jobs = [partial(own_recording, file, cut) for file in (*files, *test_files)]
    found = build(
        "recordings",
        tuple(train),
        labels + test_labels,
        is_test,
        cut,
        jobs,
        files=files + test_files,
        held_out=held_out(path),
    )
    if found.uncounted > CLIPPED * found.events:
        warnings.warn(
            f"recordings: {100 * found.uncounted / found.events:.0f} % of the events are above the 255 that a cell can "
            "count in one slice; use more timesteps, a larger image_size or a shorter window",
            stacklevel=2,
        )
    return found
