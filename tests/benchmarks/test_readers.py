"""The benchmark of readers, at a toy size: every format is written, read back, and read by the peers that are there."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import events, readers
from tests.data.recordings import recording

pytestmark = pytest.mark.slow

pytest.importorskip("faery", reason="needs faery: install rheobase[events]")


@pytest.fixture(autouse=True)
def _own_modules() -> Iterator[None]:
    """Parts of peers that were imported without the rest are gone after a test."""
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        if name.partition(".")[0] in ("tonic", "spikingjelly", "torchvision"):
            del sys.modules[name]


def test_every_format_is_read_beside_its_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {name: bool(find_spec(name)) for name in ("tonic", "expelliarmus")}
    monkeypatch.setattr(readers, "EVENTS", 700)
    monkeypatch.setattr(events, "SECONDS", 0.0)
    peers = set()
    paths = readers.made_up_files(tmp_path)
    assert {path.suffix for path in paths} == {".aedat", ".aedat4", ".bin", ".csv", ".dat", ".npz", ".raw"}
    for path in paths:
        found = events.compare(readers.contenders(path), 700, 1, events.columns_differ)
        assert found["rheobase"]["result"] == "equal"
        assert found["rheobase"]["million_events_per_second"] > 0
        peers |= {name for name, row in found.items() if row["result"] == "equal"}
    assert {"rheobase", "numpy.load", "numpy.loadtxt"} <= peers
    assert ("tonic" in peers, "tonic (expelliarmus)" in peers) == (there["tonic"], there["expelliarmus"])


def test_other_events_are_seen() -> None:
    one, other = recording(1, 20), recording(2, 20)
    assert events.columns_differ(one, one) == ""
    assert events.columns_differ({name: getattr(other, name) for name in "txyp"}, one) == "differs in t, x, y, p"
    assert events.columns_differ({name: np.zeros(3) for name in "txyp"}, one) == "3 events instead of 20"


def test_every_reader_was_fast_enough_when_it_was_measured() -> None:
    measured = json.loads((Path(__file__).parents[2] / readers.OUT).read_text())["formats"]
    assert {row["name"] for row in measured} == {Path(name).stem for name in (*readers.HAND_MADE, *readers.BY_FAERY)}
    for row in measured:
        ours = row["reading"]["rheobase"]
        assert ours["result"] == "equal", row["name"]
        assert min(ours["million_events_per_second"], ours["million_events_per_second_cold"]) >= 10, row["name"]
