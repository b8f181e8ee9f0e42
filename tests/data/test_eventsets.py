"""Data sets of recordings in their official layouts, made up here: labels, splits, times, damage."""

import gzip
import shutil
from pathlib import Path
from struct import pack

import numpy as np
import pytest
import torch

from rheobase.data import load
from rheobase.data.events import Events, read
from rheobase.data.eventset import EventDataset, Slicing, build, sliced
from rheobase.data.sets import simulated
from rheobase.data.sets.dvscifar10 import CLASSES, held_out
from rheobase.data.sets.mnist import read_idx
from tests.data import recordings
from tests.data.recordings import recording


def shifted(events: Events, start: int) -> Events:
    return Events(events.t + start, events.x, events.y, events.p, events.width, events.height)


def joined(parts: list[Events]) -> Events:
    columns = (np.concatenate([getattr(e, name) for e in parts]) for name in "txyp")
    return Events(*columns, parts[0].width, parts[0].height)


@pytest.fixture
def gestures(tmp_path: Path) -> tuple[Path, list[Events]]:
    """Three clips at labelled times, with events between them that belong to none."""
    clips = [shifted(recording(i, 60 + i, until=1_400_000), 2_000_000 * (i + 1)) for i in range(3)]
    between = shifted(recording(9, 20, until=500_000), 3_450_000)
    whole = joined([clips[0], between, clips[1], clips[2]])
    for user in ("user01_led", "user24_lab"):
        (tmp_path / f"{user}.aedat").write_bytes(recordings.aedat_3(whole))
        rows = [
            f"{label},{2_000_000 * (i + 1)},{2_000_000 * (i + 1) + 1_400_000}" for i, label in enumerate((4, 11, 1))
        ]
        (tmp_path / f"{user}_labels.csv").write_text("\n".join(["class,startTime_usec,endTime_usec", *rows]) + "\n")
    (tmp_path / "trials_to_train.txt").write_text("user01_led.aedat\n")
    (tmp_path / "trials_to_test.txt").write_text("user24_lab.aedat\n")
    return tmp_path, clips


def test_gestures_come_out_at_their_labelled_times(gestures: tuple[Path, list[Events]]) -> None:
    folder, clips = gestures
    found = load("dvsgesture", folder)
    assert isinstance(found, EventDataset)
    assert found.train.shape == (40, 2, 32, 32)
    assert found.train.labels.tolist() == found.test.labels.tolist() == [3, 10, 0]
    for i, clip in enumerate(clips):
        frames = found.train.read(torch.tensor([i]))[0]
        start = 2_000_000 * (i + 1)
        expected = [int(((clip.t - start) // 30_000 == k).sum()) for k in range(40)]
        assert frames.sum((1, 2, 3)).tolist() == expected
        first = clip.between(start, start + 30_000)
        cells = {(p, y // 4, x // 4) for p, y, x in np.stack([first.p, first.y, first.x], 1).tolist()}
        assert {tuple(cell) for cell in frames[0].nonzero().tolist()} == cells


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("trials_to_test.txt", "user99.aedat", r"trials_to_test\.txt lists user99\.aedat, which is missing"),
        ("user01_led_labels.csv", "class,start,end\n12,1,2\n", "line 2: expected a class from 1 to 11"),
        ("user01_led_labels.csv", "class,start,end\n1,2\n", "line 2: expected class, start and end"),
        ("user01_led_labels.csv", f"class,start,end\n1,{10**21},{10**22}\n", "line 2: expected a class"),
        ("user01_led_labels.csv", "1,2,3\n", "line 1: expected headings, got numbers"),
    ],
)
def test_broken_gesture_folders(gestures: tuple[Path, list[Events]], file: str, content: str, message: str) -> None:
    (gestures[0] / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        load("dvsgesture", gestures[0])


def test_damage_is_left_out_and_told(gestures: tuple[Path, list[Events]]) -> None:
    path = gestures[0] / "user24_lab.aedat"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"dvsgesture: some files are damaged \(truncated 1\)"):
        load("dvsgesture", gestures[0])


def test_a_gesture_ends_where_its_label_says(gestures: tuple[Path, list[Events]]) -> None:
    folder, clips = gestures
    path = folder / "user01_led_labels.csv"
    path.write_text("class,start,end\n4,2000000,2090000\n11,3000000,3000001\n")
    with pytest.warns(UserWarning, match=r"some files are damaged \(gestures without events 1\)"):
        found = load("dvsgesture", str(folder))
    frames = found.train.read(torch.arange(2))
    assert frames.sum((1, 2, 3, 4)).tolist() == [len(clips[0].between(2_000_000, 2_090_000)), 0]


def test_counts_are_clipped_and_rates_are_per_second() -> None:
    t = 7_000_000 + np.array([0, *[100] * 300, 2_000_000])
    x, y = np.full(len(t), 3, np.uint16), np.full(len(t), 5, np.uint16)
    events = Events(t, x, y, np.ones(len(t), np.uint8), 8, 8)
    found = sliced([events], Slicing(window=50, timesteps=4, size=8, offset=60))
    assert (found.frames[0, 0, 1, 5, 3], found.frames.sum(), found.uncounted) == (255, 255, 45)
    assert (list(found.events), list(found.seconds)) == ([302], [2.0])
    cut = Slicing(window=50, timesteps=4, size=8)
    half = Events(t[:-1], x[:-1], y[:-1], np.ones(len(t) - 1, np.uint8), 8, 8)  # in 100 us
    data = build("set", "ab", [0, 1, 0], [False, True, False], cut, [lambda: sliced([events, half, events], cut)])
    assert (data.train_rates, data.test_rates) == ([151.0, 151.0], [pytest.approx(301 / 1e-4)])
    assert [split.labels.tolist() for split in (data.train, data.test)] == [[0, 0], [1]]
    binary = sliced([events], Slicing(window=50, timesteps=4, size=8, offset=60, binary=True))
    assert (int(binary.frames.sum()), binary.uncounted) == (1, 0)


def test_cifar_recordings_are_split_by_their_numbers(tmp_path: Path) -> None:
    for label, name in enumerate(CLASSES):
        (tmp_path / name).mkdir()
        for i in range(11):
            x, y = (np.full(i + 1, v, np.uint16) for v in (label, i))
            events = Events(np.full(i + 1, 5), x, y, np.ones(i + 1, np.uint8), 128, 128)
            (tmp_path / name / f"cifar10_{name}_{i}.aedat").write_bytes(recordings.aedat_2(events))
    found = load("dvscifar10", tmp_path)
    assert found.test.labels.tolist() == list(range(10))
    frames = found.test.read(torch.arange(10))
    assert frames.shape == (10, 10, 2, 42, 42)
    assert frames[:, 0, 1].sum((1, 2)).tolist() == [10] * 10  # number 9 has ten events, and 10 comes after it
    first = load("dvscifar10", tmp_path, split="first")
    assert first.test.read(torch.arange(10)).sum((1, 2, 3, 4)).tolist() == [1] * 10
    with pytest.raises(ValueError, match="split: expected one of tenth, first, got 'last'"):
        load("dvscifar10", tmp_path, split="last")


def test_splits_of_the_full_set() -> None:
    assert sum(held_out(1000, "tenth")) == sum(held_out(1000, "first")) == 100
    assert held_out(1000, "first").index(False) == 100


def test_nmnist_folders_and_arrays_agree(tmp_path: Path) -> None:
    parts, labels, is_test = [], [], []
    for part in ("Train", "Test"):
        for label in range(10):
            events = recording(label + 10 * (part == "Test"), 20 + label, 34, 34, until=300_000)
            path = tmp_path / part / str(label) / "00001.bin"
            path.parent.mkdir(parents=True)
            path.write_bytes(recordings.nmnist(events))
            parts.append(events)
            labels.append(label)
            is_test.append(part == "Test")
    folder = load("nmnist", tmp_path)
    columns = {name: np.concatenate([getattr(e, name) for e in parts]) for name in "txyp"}
    offsets = np.cumsum([0, *map(len, parts)])
    np.savez(tmp_path / "all.npz", **columns, offsets=offsets, labels=labels, is_test=is_test)
    arrays = load("nmnist", tmp_path / "all.npz")
    for a, b in ((folder.train, arrays.train), (folder.test, arrays.test)):
        assert a.labels.tolist() == b.labels.tolist() == list(range(10))
        assert torch.equal(a.read(torch.arange(10)), b.read(torch.arange(10)))
    damaged = columns | {"x": np.where(np.arange(offsets[-1]) == 5, 77, columns["x"])}
    np.savez(tmp_path / "damaged.npz", **damaged, offsets=offsets, labels=labels, is_test=is_test)
    with pytest.warns(UserWarning, match="outside 1"):
        assert load("nmnist", tmp_path / "damaged.npz").skipped == {"outside": 1}
    np.savez(tmp_path / "below.npz", **columns, offsets=offsets, labels=[-1, *labels[1:]], is_test=is_test)
    with pytest.raises(ValueError, match="labels from 0 to 9"):
        load("nmnist", tmp_path / "below.npz")
    np.savez(tmp_path / "bad.npz", **columns, offsets=offsets[:-1], labels=labels, is_test=is_test)
    with pytest.raises(ValueError, match="one label and one is_test"):
        load("nmnist", tmp_path / "bad.npz")
    for name, values in (("offsets", offsets * 1.0), ("labels", np.array(labels, float)), ("is_test", np.array(True))):
        arrays = columns | {"offsets": offsets, "labels": labels, "is_test": is_test, name: values}
        np.savez(tmp_path / "types.npz", **arrays)
        with pytest.raises(ValueError, match=f"expected {name} to be a row of whole numbers"):
            load("nmnist", tmp_path / "types.npz")
    falling = np.where(np.arange(21) == 3, 0, offsets).astype(np.uint64)
    np.savez(tmp_path / "falling.npz", **columns, offsets=falling, labels=labels, is_test=is_test)
    with pytest.raises(ValueError, match="rising offsets"):
        load("nmnist", tmp_path / "falling.npz")
    np.savez(tmp_path / "half.npz", **columns, offsets=offsets, labels=labels, is_test=[False] * 20)
    with pytest.raises(ValueError, match="dataset 'nmnist': all 20 recordings are on one side of the split"):
        load("nmnist", tmp_path / "half.npz")


def test_the_fingerprint_is_of_the_files_and_not_of_how_they_are_sliced(gestures: tuple[Path, list[Events]]) -> None:
    folder, _ = gestures
    whole = load("dvsgesture", folder).info.fingerprint
    assert whole == load("dvsgesture", folder, timesteps=3, size=7, window=900).info.fingerprint
    assert whole == load("dvsgesture", shutil.copytree(folder, folder.with_name("copy"))).info.fingerprint
    path = next(folder.glob("*.aedat"))
    content = bytearray(path.read_bytes())
    content[-8] ^= 2  # the polarity of one event
    path.write_bytes(content)
    assert whole != load("dvsgesture", folder).info.fingerprint


def test_the_fingerprint_of_simulated_recordings_is_of_images_and_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("digits-dvs", timesteps=2).info
    assert first.simulated
    assert first.fingerprint == load("digits-dvs", timesteps=1, size=5).info.fingerprint
    monkeypatch.setattr(simulated, "SEED", 1)
    assert first.fingerprint != load("digits-dvs", timesteps=1, size=5).info.fingerprint


def test_options_of_slices() -> None:
    found = load("digits-dvs", timesteps=3, size=8, binary=True)
    assert found.train.shape == (3, 2, 8, 8)
    assert found.train.read(torch.arange(50)).max() == 1
    with pytest.raises(ValueError, match="no option speed for slices"):
        load("digits-dvs", speed=2)
    with pytest.raises(ValueError, match="dataset 'digits' has no option window"):
        load("digits", window=2)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path: Path, packed: bool) -> None:
    random = np.random.default_rng(0)
    pixels = {
        "train": random.integers(0, 256, (7, 28, 28), np.uint8),
        "t10k": random.integers(0, 256, (3, 28, 28), np.uint8),
    }
    for part, values in pixels.items():
        labels = np.arange(len(values), dtype=np.uint8)
        for kind, array in (("images-idx3", values), ("labels-idx1", labels)):
            content = pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            suffix = ".gz" if packed else ""
            (tmp_path / f"{part}-{kind}-ubyte{suffix}").write_bytes(gzip.compress(content) if packed else content)
    found = load("fashion-mnist", tmp_path)
    assert found.train.shape == (1, 28, 28)
    assert np.array_equal(found.test.read(torch.arange(3))[:, 0].numpy(), pixels["t10k"])
    assert found.train.labels.tolist() == list(range(7))
    shutil.copytree(tmp_path, tmp_path / "both" / "MNIST" / "raw", ignore=shutil.ignore_patterns("both"))
    assert load("mnist", tmp_path / "both").info.name == "mnist"
    with pytest.raises(ValueError, match="no fashion-mnist in"):
        load("fashion-mnist", tmp_path / "both")
    path = next(tmp_path.glob("train-images*"))
    if not packed:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match="5487 values from byte 16 on, expected 5488"):
            load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pack(">4BI", 0, 0, 8, 1, 2**30) + bytes(9), "its array \\[1073741824\\] would take 2048 MiB"),
        (pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3), "would take"),
        (pack(">4BI", 0, 0, 8, 1, 3) + bytes(2**20), "3 or more values from byte 8 on, expected 3"),
        (pack(">4BI", 0, 0, 8, 1, 0), "is empty"),
        (b"", "not an idx file"),
        (b"\0\0\x08\xff" + bytes(9), "not an idx file"),
    ],
)
def test_hostile_idx_files(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=words):
        read_idx(path)


def test_layout_sample(shared_events: Path) -> None:
    folder = shared_events / "dvsgesture-layout"
    found = load("dvsgesture", folder)
    assert found.train.labels.tolist() == list(range(10))
    events = read(folder / "user00_lab.aedat")
    for i in range(10):
        start = 80_000_000 + 2_450_000 * i
        clip = events.between(start, start + 1_450_000)
        assert start <= clip.t[0] < start + 5_000
        assert found.train.read(torch.tensor([i])).sum() == ((clip.t - start) < 1_200_000).sum()
