"""Short runs that several files of tests look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rheobase import train
from rheobase.train.switches import threads
from tests.train.short_runs import recipe


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """The network is so small that a second thread only waits; sums also depend on the number of threads."""
    with threads(1):
        yield


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with threads(1):
        train.fit(recipe(), out=folder, device="cpu")
    return folder
