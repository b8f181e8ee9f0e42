import errno
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from rheobase.train import checkpoint

TENSORS = {
    "weights": {"a": torch.arange(12.0).view(3, 4), "b": torch.tensor([1.5, -2.0], dtype=torch.float64)},
    "training": {"n": torch.tensor(7)},
}


def save(folder: Path, step: int, **options: Any) -> Path:
    return checkpoint.save(folder, step, TENSORS, {"step": step, "text": "x"}, **options)


def assert_equal(found: dict[str, dict[str, Tensor]]) -> None:
    assert found.keys() == TENSORS.keys()
    for name, tensors in TENSORS.items():
        assert found[name].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert found[name][key].dtype == tensor.dtype
            assert torch.equal(found[name][key], tensor)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    found = checkpoint.load(save(tmp_path, 12))
    assert found.step == 12
    assert found.state == {"step": 12, "text": "x"}
    assert_equal(found.tensors)


def test_files_are_plain_safetensors_and_json(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    assert sorted(p.name for p in path.iterdir()) == [
        "SHA256SUMS", "state.json", "training.safetensors", "weights.safetensors",
    ]  # fmt: skip
    assert safetensors.torch.load_file(path / "weights.safetensors").keys() == {"a", "b"}
    assert json.loads((path / "state.json").read_text())["step"] == 3


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 90, 1000, 100_000_000):
        save(tmp_path, step)
    assert sorted(int(p.name) for p in tmp_path.iterdir()) == [1000, 100_000_000]
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 100_000_000


def test_parts_are_small_and_join_to_the_whole(tmp_path: Path) -> None:
    whole, parts = save(tmp_path / "whole", 1), save(tmp_path / "parts", 1, part_bytes=100)
    assert all(p.stat().st_size <= 100 for p in parts.iterdir() if p.name != "SHA256SUMS")
    pieces = sorted(parts.glob("weights.safetensors.part*"))
    assert len(pieces) > 1
    assert b"".join(p.read_bytes() for p in pieces) == (whole / "weights.safetensors").read_bytes()
    assert_equal(checkpoint.load(parts).tensors)


def test_nothing_saved_yet(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    (tmp_path / ".00000004.incomplete").mkdir()
    assert checkpoint.latest(tmp_path) is None


def test_damage_anywhere_is_recognised_and_the_one_before_is_used(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    rng = random.Random(0)
    for file in sorted(newest.iterdir()):
        content = file.read_bytes()
        places = {0, 8, len(content) // 2, len(content) - 1, *(rng.randrange(len(content)) for _ in range(20))}
        damaged = [content[:i] + bytes([content[i] ^ 1 << rng.randrange(8)]) + content[i + 1 :] for i in places]
        for bad in [*damaged, content[:-1], content[: len(content) // 2], b"", content + b"\n"]:
            file.write_bytes(bad)
            with pytest.warns(UserWarning, match=r"00000002 is damaged.*trying the previous one"):
                found = checkpoint.latest(tmp_path)
            assert found is not None
            assert found.step == 1
        file.unlink()
        with pytest.warns(UserWarning, match="00000002"):
            assert checkpoint.latest(tmp_path)
        file.write_bytes(content)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 2


def test_damaged_ones_are_set_aside_and_two_good_ones_kept(tmp_path: Path) -> None:
    save(tmp_path, 46)
    (save(tmp_path, 51) / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="00000051 is damaged"):
        found = checkpoint.latest(tmp_path, set_aside=True)
    assert found is not None
    assert found.step == 46
    save(tmp_path, 49)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000046", "00000049", "00000051.damaged"]
    (save(tmp_path, 51) / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="00000051 is damaged"):
        checkpoint.latest(tmp_path, set_aside=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000049", "00000051.damaged"]


def test_only_damaged_ones_raise(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match=r"no checkpoint in .* is usable"):
        checkpoint.latest(tmp_path, set_aside=True)
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_full_disk_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    save(tmp_path, 1)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "write":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match=r"could not write checkpoint .*00000002: No space left on device; earlier"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]
    assert checkpoint.latest(tmp_path)


def test_a_leftover_of_a_killed_save_is_no_obstacle(tmp_path: Path) -> None:
    leftover = tmp_path / ".00000002.incomplete"
    leftover.mkdir(parents=True)
    (leftover / "weights.safetensors").write_bytes(b"half")
    save(tmp_path, 2)
    save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["00000002"]


def test_integers_come_back_as_multiples_of_their_units(tmp_path: Path) -> None:
    weights = {"a": torch.tensor([[[2], [-3]], [[5], [127]]], dtype=torch.int8), "b": torch.tensor([1.5, 2.0])}
    units = {"a": torch.tensor([0.5, 0.25])}
    saved = checkpoint.load(checkpoint.save(tmp_path, 1, {"weights": weights, "units": units}, {}))
    assert saved.weights["a"].tolist() == [[[1.0], [-1.5]], [[1.25], [31.75]]]
    assert saved.weights["a"].dtype == torch.float32
    assert torch.equal(saved.weights["b"], weights["b"])


def test_the_checksum_is_that_of_the_file_also_in_parts(tmp_path: Path) -> None:
    whole, parts = (checkpoint.load(save(tmp_path / name, 1, part_bytes=n)) for name, n in (("a", None), ("b", 100)))
    assert whole.sha256() == hashlib.sha256((whole.path / "weights.safetensors").read_bytes()).hexdigest()
    assert parts.sha256() == whole.sha256()


def test_the_newest_step(tmp_path: Path) -> None:
    assert checkpoint.newest_step(tmp_path / "none") == 0
    save(tmp_path, 0)
    assert checkpoint.newest_step(tmp_path) == 0
    save(tmp_path, 12)
    save(tmp_path, 9)
    assert checkpoint.newest_step(tmp_path) == 12


def with_sums(path: Path) -> Path:
    """Let the sums agree with the files."""
    lines = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n"
        for p in sorted(path.iterdir())
        if p.name != "SHA256SUMS"
    ]
    (path / "SHA256SUMS").write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", b"[" * 200_000),
        ("state.json", b"[]"),
        ("state.json", b"\xff"),
        ("weights.safetensors", b""),
        ("weights.safetensors", b"\xff" * 64),
        ("else.safetensors", b"\0" * 64),
    ],
)
def test_files_that_agree_with_their_sums_may_be_hostile(tmp_path: Path, name: str, content: bytes) -> None:
    path = save(tmp_path, 12)
    (path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^checkpoint {path} is damaged: .+$"):
        checkpoint.load(with_sums(path))


def test_a_checkpoint_without_its_state_or_weights_is_damaged(tmp_path: Path) -> None:
    for name in ("state.json", "weights.safetensors"):
        path = save(tmp_path, 12)
        (path / name).unlink()
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.load(with_sums(path))


def test_odd_names_are_no_steps(tmp_path: Path) -> None:
    save(tmp_path, 12)
    for name in ("²", "9" * 30, "٣"):
        (tmp_path / name).mkdir()
    assert checkpoint.newest_step(tmp_path) == 12


def test_units_that_do_not_fit_the_weights(tmp_path: Path) -> None:
    tensors = {"weights": {"a": torch.ones(3, 4, dtype=torch.int8)}, "units": {"a": torch.ones(5)}}
    path = checkpoint.save(tmp_path, 12, tensors, {})
    with pytest.raises(ValueError, match=rf"^checkpoint {path} is damaged: its units do not fit its weights$"):
        _ = checkpoint.load(path).weights
