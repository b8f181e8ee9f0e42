"""A run is stopped after some epochs, and saves."""

import sys
from pathlib import Path

import pytest

from tools import until
from tools.until import train_until

TRAINING = """
import sys, time
from pathlib import Path
run, epochs = Path(sys.argv[1]), int(sys.argv[2])
try:
    for epoch in range(epochs):
        with open(run / "metrics.jsonl", "a") as file:
            file.write("{}\\n")
        time.sleep(0.3)
except KeyboardInterrupt:
    (run / "saved").touch()
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "INTO_EPOCH", 0.0)


def train(run: Path, epochs: int) -> list[str]:
    return [sys.executable, "-c", TRAINING, str(run), str(epochs)]


def test_it_stops_after_the_epochs_and_not_twice(tmp_path: Path) -> None:
    assert train_until(2, tmp_path, train(tmp_path, 100))
    assert (tmp_path / "saved").exists()
    finished = (tmp_path / "metrics.jsonl").read_text()
    assert 2 <= len(finished.splitlines()) <= 4
    assert train_until(2, tmp_path, train(tmp_path, 100))
    assert (tmp_path / "metrics.jsonl").read_text() == finished


def test_a_run_that_ends_before_has_not_got_that_far(tmp_path: Path) -> None:
    assert not train_until(3, tmp_path, train(tmp_path, 1))
    assert not (tmp_path / "saved").exists()
