"""Prepared slices: made once, found again, made anew when anything differs or the disk has damaged them."""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase.data import cache
from rheobase.data.cache import Recordings, prepared

SHAPE = (5, 3, 2, 4, 6)


class Maker:
    """Jobs that make 2 and 3 recordings and count how often they are asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.frames = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)

    def jobs(self) -> list[Callable[[], Recordings]]:
        return [lambda: self.make(0, 2), lambda: self.make(2, 5)]

    def make(self, first: int, last: int) -> Recordings:
        self.calls += 1
        frames, n = torch.from_numpy(self.frames[first:last]), last - first
        return Recordings(frames, [7] * n, [0.5] * n, {"outside": 1}, uncounted=2)


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_made_once(maker: Maker, tmp_path: Path) -> None:
    file = tmp_path / "recording"
    file.write_bytes(b"1")
    for _ in range(2):
        found = prepared("set", SHAPE, {"window": 5}, [file], maker.jobs())
        assert torch.equal(found.frames, torch.from_numpy(maker.frames))
        assert (found.events, found.skipped, found.uncounted) == ([7] * 5, {"outside": 2}, 4)
    assert maker.calls == 2
    prepared("set", SHAPE, {"window": 6}, [file], maker.jobs())
    assert maker.calls == 4
    file.write_bytes(b"22")
    prepared("set", SHAPE, {"window": 5}, [file], maker.jobs())
    assert maker.calls == 6


def test_a_file_of_the_same_size_or_elsewhere_is_another(maker: Maker, tmp_path: Path) -> None:
    for number, name in enumerate(("one", "one", "other")):
        (tmp_path / name).write_bytes(b"1")
        os.utime(tmp_path / name, ns=(number // 2, number // 2 if name == "other" else number))
        prepared("set", SHAPE, {}, [tmp_path / name], maker.jobs())
    assert maker.calls == 6


def test_others_may_read_an_entry_where_the_umask_lets_them(maker: Maker) -> None:
    before = os.umask(0o022)
    try:
        prepared("set", SHAPE, {}, [], maker.jobs())
    finally:
        os.umask(before)
    (entry,) = cache.folder().glob("set-*")
    assert stat.S_IMODE(entry.stat().st_mode) == 0o755


def test_what_killed_processes_left_is_removed_after_a_day(maker: Maker) -> None:
    prepared("set", SHAPE, {}, [], maker.jobs())
    (entry,) = cache.folder().glob("set-*")
    entry.rename(entry.with_name(f".{entry.name}-old"))
    (cache.folder() / f".{entry.name}-new").mkdir()
    os.utime(entry.with_name(f".{entry.name}-old"), (0, 0))
    prepared("set", SHAPE, {}, [], maker.jobs())
    assert {path.name for path in cache.folder().iterdir()} == {entry.name, f".{entry.name}-new"}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("frames.bin", b"", b"\0"),
        ("about.json", b'"sha256": "', b'"sha256": "0'),
        ("about.json", b'"uncounted": 4', b'"uncounted": 5'),
        ("about.json", b"{", b"3 {"),
        ("about.json", b"{", b"[" * 200_000),
        ("about.json", b'"events"', b'"event"'),
    ],
)
def test_damage_is_noticed_and_repaired(maker: Maker, name: str, old: bytes, new: bytes) -> None:
    prepared("set", SHAPE, {}, [], maker.jobs())
    (path,) = cache.folder().glob(f"set-*/{name}")
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    assert torch.equal(prepared("set", SHAPE, {}, [], maker.jobs()).frames, torch.from_numpy(maker.frames))
    assert maker.calls == 4


def test_a_failure_leaves_nothing(maker: Maker) -> None:
    def fail() -> Recordings:
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
    with pytest.raises(OSError, match="set RHEOBASE_CACHE to another folder"):
        prepared("set", SHAPE, {}, [], maker.jobs())
