"""Prepared slices: made once, found again, made anew when anything differs or the disk has damaged them."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase.data import cache
from rheobase.data.cache import Made, prepared

SHAPE = (5, 3, 2, 4, 6)


class Maker:
    """Jobs that make 2 and 3 recordings and count how often they are asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.frames = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)

    def jobs(self) -> list[Callable[[], Made]]:
        return [lambda: self.made(0, 2), lambda: self.made(2, 5)]

    def made(self, first: int, last: int) -> Made:
        self.calls += 1
        return Made(self.frames[first:last], [7] * (last - first), [0.5] * (last - first), {"outside": 1}, clipped=2)


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_made_once(maker: Maker, tmp_path: Path) -> None:
    file = tmp_path / "recording"
    file.write_bytes(b"1")
    for _ in range(2):
        found = prepared("set", SHAPE, {"window": 5}, [file], maker.jobs())
        assert torch.equal(found.frames, torch.from_numpy(maker.frames))
        assert (found.events, found.skipped, found.clipped) == ([7] * 5, {"outside": 2}, 4)
    assert maker.calls == 2
    prepared("set", SHAPE, {"window": 6}, [file], maker.jobs())
    assert maker.calls == 4
    file.write_bytes(b"22")
    prepared("set", SHAPE, {"window": 5}, [file], maker.jobs())
    assert maker.calls == 6


@pytest.mark.parametrize("name", ["frames.bin", "about.json"])
def test_damage_is_noticed_and_repaired(maker: Maker, name: str) -> None:
    prepared("set", SHAPE, {}, [], maker.jobs())
    (path,) = cache.folder().glob(f"set-*/{name}")
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    assert torch.equal(prepared("set", SHAPE, {}, [], maker.jobs()).frames, torch.from_numpy(maker.frames))
    assert maker.calls == 4


def test_a_failure_leaves_nothing(maker: Maker) -> None:
    def fail() -> Made:
        raise ValueError("no such recording")

    with pytest.raises(ValueError, match="no such recording"):
        prepared("set", SHAPE, {}, [], [*maker.jobs(), fail])
    assert list(cache.folder().iterdir()) == []


def test_writing_to_frames_does_not_reach_the_file(maker: Maker) -> None:
    prepared("set", SHAPE, {}, [], maker.jobs()).frames.fill_(0)
    assert torch.equal(prepared("set", SHAPE, {}, [], maker.jobs()).frames, torch.from_numpy(maker.frames))
    assert maker.calls == 2


def test_several_at_the_same_time(maker: Maker) -> None:
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(prepared("set", SHAPE, {}, [], maker.jobs()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(r.frames, torch.from_numpy(maker.frames)) for r in results)
    assert len(list(cache.folder().iterdir())) == 1


def test_a_folder_that_cannot_be_written(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match="name another folder in RHEOBASE_CACHE"):
        prepared("set", SHAPE, {}, [], maker.jobs())
