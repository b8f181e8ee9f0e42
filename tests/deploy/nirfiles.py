"""A NIR file to damage, and the check that it is refused without much memory."""

import resource
from pathlib import Path
from typing import Any

import pytest

from rheobase.deploy import nirfile
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir as rheobase_nir
from tests.deploy.networks import tiny


def written(folder: Path) -> Path:
    """Write a small network to a NIR file."""
    rheobase_nir.write(fold(tiny()), folder / "net.nir", (2, 7, 7))
    return folder / "net.nir"


def replace(path: Path, name: str, **dataset: Any) -> None:
    """Delete a dataset, and create another in its place if one is described."""
    import h5py

    with h5py.File(path, "a") as file:
        del file[name]
        if dataset:
            file.create_dataset(name, **dataset)


def assert_refused(path: Path, words: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=words):
        nirfile.read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB
