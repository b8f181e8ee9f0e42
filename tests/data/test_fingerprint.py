"""Fingerprints of many files: of names, sizes, and the ends of some."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from rheobase.data import fingerprint
from rheobase.data.fingerprint import of_files


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "set" / name / f"{i}.bin" for name in ("cat", "dog") for i in range(9)]
    for i, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([i]) * (20 + i))
    return paths


def test_another_folder_is_the_same(files: list[Path], tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "set", tmp_path / "other" / "place")
    moved = [tmp_path / "other" / "place" / path.relative_to(tmp_path / "set") for path in files]
    assert of_files(files, [1, 2]) == of_files(moved, [1, 2])
    assert of_files(files, [1, 2]) != of_files(files, [2, 1])
    assert of_files(files, torch.tensor([1, 2])) != of_files(files, torch.tensor([2, 1]))


def test_names_sizes_and_content_count(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "CONTENTS", 3)  # 0, 6 and 12
    before = of_files(files)
    files[5].write_bytes(b"x" * 25)
    assert of_files(files) == before  # its content is not in the sample
    files[5].write_bytes(b"x" * 26)
    changed = of_files(files)
    assert changed != before
    files[12].write_bytes(b"x" * 32)
    assert of_files(files) not in (before, changed)
    renamed = files[7].rename(files[7].with_name("z.bin"))
    assert of_files([*files[:7], renamed, *files[8:]]) != of_files([*files[:7], *files[8:]])


@pytest.mark.parametrize(("at", "seen"), [(0, True), (29, False), (59, True)])
def test_of_a_large_file_both_ends_are_read(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, at: int, seen: bool
) -> None:
    monkeypatch.setattr(fingerprint, "END", 20)
    files[0].write_bytes(bytes(60))
    before = of_files(files)
    files[0].write_bytes(bytes(at) + b"x" + bytes(59 - at))
    assert (of_files(files) != before) is seen


def test_names_that_are_not_utf8_count_too(files: list[Path]) -> None:
    first = files[-1].rename(files[-1].with_name(os.fsdecode(b"\xe4.bin")))
    before = of_files([*files[:-1], first])
    second = first.rename(first.with_name(os.fsdecode(b"\xf6.bin")))
    assert of_files([*files[:-1], second]) != before


def test_of_very_many_files_not_all_are_looked_at(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "SIZES", 2)
    monkeypatch.setattr(fingerprint, "CONTENTS", 1)
    before = of_files(files)
    files[5].unlink()
    assert of_files(files) == before
    files[9].write_bytes(b"another size")
    assert of_files(files) != before
