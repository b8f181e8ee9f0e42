"""The 1797 handwritten digits of 8 x 8 pixels that ship with the package.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine
Learning Repository, CC BY 4.0), as distributed with scikit-learn: rows of 64 pixels from 0 to 16 and a label.
"""

import gzip
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from rheobase.data.dataset import Dataset, Split
from rheobase.data.expectation import expecting
from rheobase.plugins import dataset

CLASSES = tuple("0123456789")
HELD_OUT = 5


@dataset
@expecting(classes=CLASSES, channels=1, size=8, images=1438)
def digits(path: Path | None = None) -> Dataset:
    """Load the digits. Every fifth image is for testing. No path is needed."""
    packed = (files("rheobase.data.sets") / "digits.csv.gz").read_bytes()
    rows = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.int64)
    images = torch.from_numpy(rows[:, :-1] * 255 // 16).to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(rows[:, -1])
    held_out = torch.arange(len(labels)) % HELD_OUT == HELD_OUT - 1
    train, test = (Split(images[part], labels[part]) for part in (~held_out, held_out))
    return Dataset.of("digits", train, test, CLASSES, held_out=HELD_OUT)
