"""The 1797 hand-written digits of 8 x 8 pixels that ship inside the package.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine
Learning Repository, CC BY 4.0), as distributed with scikit-learn: rows of 64 pixels from 0 to 16 and a label.
"""

import gzip
from importlib.resources import files

import numpy as np
import torch

from rheobase.data.dataset import Dataset, Split, channel_moments


def load() -> Dataset:
    """Every fifth image is held out for testing."""
    packed = (files("rheobase.data.sets") / "digits.csv.gz").read_bytes()
    rows = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.int64)
    images = torch.from_numpy(rows[:, :-1] * 255 // 16).to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(rows[:, -1])
    held_out = torch.arange(len(labels)) % 5 == 4
    mean, std = channel_moments(images[~held_out])
    return Dataset(
        name="digits",
        train=Split(images[~held_out], labels[~held_out]),
        test=Split(images[held_out], labels[held_out]),
        classes=tuple("0123456789"),
        mean=mean,
        std=std,
    )
