"""A user's own recordings: formats and sensors mixed, a split that depends on names alone, refusals."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase import recipes
from rheobase.data import DataInfo, load
from rheobase.data.events import Events, slices
from rheobase.data.eventset import EventDataset, Slicing, seen
from rheobase.data.pictures import find, read
from rheobase.train.runs import load_data
from tests.data import recordings
from tests.data.recordings import recording


def saved(path: Path, events: Events) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write = {".aedat": recordings.aedat_3, ".npz": recordings.npz, ".csv": recordings.csv}[path.suffix]
    path.write_bytes(write(events))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten recordings of two classes, of different formats, sensors and durations."""
    sensors = {".aedat": (128, 128), ".npz": (40, 30), ".csv": (34, 62)}
    for label, name in enumerate(("left", "right")):
        for i in range(5):
            suffix = list(sensors)[(i + label) % 3]
            events = recording(10 * label + i, 200 + i, *sensors[suffix], until=1000 * (i + 1))
            saved(tmp_path / "set" / name / f"{i}{suffix}", events)
        (tmp_path / "set" / name / "notes.txt").touch()
        (tmp_path / "set" / name / "._3.csv").touch()
    return tmp_path / "set"


def test_every_fifth_recording_of_a_class_is_held_out(folder: Path) -> None:
    found = load("recordings", folder, size=16, timesteps=4)
    assert isinstance(found, EventDataset)
    assert found.info.classes == ("left", "right")
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4
    assert found.test.labels.tolist() == [0, 1]
    assert found.train.shape == (4, 2, 16, 16)
    numbers = found.train.read(torch.arange(8)).sum((1, 2, 3, 4)).tolist()
    assert numbers == [200, 201, 202, 203] * 2
    assert found.test.read(torch.arange(2)).sum((1, 2, 3, 4)).tolist() == [204, 204]
    assert (found.info.mean, found.info.std) == ((0.0, 0.0), (1.0, 1.0))


def test_the_split_does_not_depend_on_the_order_of_the_file_system(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = load("recordings", folder).test.read(torch.arange(2))
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listed(path), reverse=True)))
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert torch.equal(load("recordings", copy).test.read(torch.arange(2)), frames)


def test_train_and_val_folders(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    folder.rename(tmp_path / "both" / "train")
    for name in ("left", "right"):
        saved(tmp_path / "both" / "val" / name / "one.csv", recording(1, 30, 40, 50))
    found = load("recordings", tmp_path / "both")
    assert (len(found.train), len(found.test)) == (10, 2)


def test_frames_are_those_of_the_sensor_in_a_square(folder: Path) -> None:
    found = load("recordings", folder, size=20, timesteps=3)
    events = recording(1, 201, 40, 30, until=2000)  # left/1.npz
    shown = found.train.read(torch.tensor([1]))[0]
    assert np.array_equal(shown, slices(events.squared(), timesteps=3, size=(20, 20)))
    rows = shown.sum((0, 1, 3))
    assert (rows[:2].sum(), rows[18:].sum()) == (0, 0)
    assert (rows[3:17] > 0).all()


def test_slices_as_the_recipe_says(folder: Path) -> None:
    recipe = recipes.get("events_resnet17").changed(["timesteps=4", "image_size=16"])

    def counts(*settings: str) -> list[int]:
        found = load_data(recipe.changed(settings), folder)
        return found.train.read(torch.tensor([0]))[0].sum((1, 2, 3)).tolist()

    events = recording(0, 200, until=1000)
    span = int(events.t[-1]) + 1 - int(events.t[0])
    edges = [int(events.t[0]) + span * i // 4 for i in range(5)]
    assert counts() == [len(events.between(edges[i], edges[i + 1])) for i in range(4)]
    assert counts("slice_by=count") == [50] * 4
    assert counts("slice_by=count", "window=30") == [30] * 4
    first = int(events.t[0])
    assert counts("window=100") == [len(events.between(first + 100 * i, first + 100 * (i + 1))) for i in range(4)]
    with pytest.raises(ValueError, match="dataset 'digits' has no option window"):
        load_data(recipes.get("demo").changed(["window=100"]), None)


def test_slicing_of_the_official_sets_changes_too() -> None:
    own = Slicing(window=30_000, timesteps=40, size=32)
    assert own.changed(slice_by="count") == replace(own, slice_by="count", window=0)
    assert own.changed(slice_by="count", window=7).window == 7
    assert own.changed(slice_by="time") == own
    assert [str(own), str(own.changed(slice_by="count", window=7))] == ["30 ms per slice", "7 events per slice"]
    assert str(own.changed(slice_by="count")) == "40 slices of equal numbers of events"
    for wrong in ({"slice_by": "size"}, {"window": -1}, {"timesteps": 2.5}, {"sensor": "large"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}.*got '?{next(iter(wrong.values()))}"):
            own.changed(**wrong)  # type: ignore[arg-type]


def test_a_sensor_for_those_that_do_not_state_theirs(folder: Path) -> None:
    bare = folder / "left" / "bare.csv"
    bare.write_text("1,2,3,1\n2,39,29,0\n")
    with pytest.raises(ValueError, match=r"bare\.csv: the sensor size is missing"):
        load("recordings", folder)
    found = load("recordings", folder, sensor="40x30", size=30)
    assert found.info.slicing["sensor"] == "40x30"


def test_events_outside_the_sensor_are_refused(folder: Path) -> None:
    wrong = folder / "right" / "wrong.csv"
    wrong.write_text("t,x@40,y@32,p\n1,2,3,1\n2,40,3,1\n3,2,33,1\n")
    with pytest.raises(ValueError, match=r"wrong\.csv: 2 of 3 events are outside the sensor of 40 x 32; give the true"):
        load("recordings", folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("t,x@40,y@32,p\n", r"new\.csv: no events; remove the file"),
        ("t,x@20,y@12,p\n1,2,3,1\n", r"new\.csv: a sensor of 20 x 12 is smaller than the frames of 32 x 32; .*=20\)"),
    ],
)
def test_recordings_that_are_of_no_use(folder: Path, content: str, message: str) -> None:
    (folder / "right" / "new.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load("recordings", folder)


def test_damage_is_left_out_and_told(folder: Path) -> None:
    path = folder / "right" / "2.aedat"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"recordings: some files are damaged \(truncated 1\)"):
        found = load("recordings", folder)
    assert isinstance(found, EventDataset)
    assert found.events == 2 * (200 + 201 + 202 + 203 + 204) - 1


def test_full_cells_are_told(folder: Path) -> None:
    crowd = recording(3, 4000, 32, 32)
    for i in range(5):
        one = Events(crowd.t, crowd.x // 16, crowd.y // 16, crowd.p, 32, 32)
        saved(folder / "right" / f"crowd{i}.npz", one)
    with pytest.warns(
        UserWarning, match=r"\d+ % of the events are above the 255 that a cell can count in one slice; use"
    ):
        load("recordings", folder, timesteps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda f: shutil.rmtree(f),
            "is not a folder; give one with a sub-folder of recordings per class, with --data or --root",
        ),
        (lambda f: [shutil.rmtree(p) for p in f.iterdir()], "has no sub-folders; expected one with recordings"),
        (lambda f: (f / "empty").mkdir(), r"empty has no recordings; expected files such as \*\.aedat, \*\.aedat4, "),
        (lambda f: [p.unlink() for p in f.glob("*/4*")], "add at least 5 recordings to a class, or folders"),
    ],
)
def test_folders_that_are_no_set(folder: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    make(folder)
    with pytest.raises(ValueError, match=message):
        load("recordings", folder)


@pytest.fixture
def info(folder: Path) -> DataInfo:
    return load("recordings", folder, size=16, timesteps=4, slice_by="count").info


def test_a_recording_is_seen_as_in_training(folder: Path, info: DataInfo) -> None:
    kept = DataInfo.of(json.loads(json.dumps(info.as_dict())), "data.json")
    assert kept == info
    data = load("recordings", folder, size=16, timesteps=4, slice_by="count")
    for i, path in enumerate(find([folder / "left"], kept)[:4]):
        assert path.name[0] == str(i)
        assert torch.equal(read(path, kept), data.train.read(torch.tensor([i])).float().movedim(0, 1))


def test_arrays_are_sequences_or_one_frame(tmp_path: Path, info: DataInfo) -> None:
    frames = np.arange(3 * 2 * 16 * 16).reshape(3, 2, 16, 16)
    np.save(tmp_path / "frames.npy", frames)
    assert read(tmp_path / "frames.npy", info).tolist() == frames[:, None].tolist()
    np.save(tmp_path / "frame.npy", frames[0])
    assert read(tmp_path / "frame.npy", info).tolist() == frames[:1].tolist()
    for shape in ((3, 2, 16, 15), (1, 3, 2, 16, 16), (0, 2, 16, 16), (3, 1, 16, 16)):
        np.save(tmp_path / "other.npy", np.zeros(shape))
        with pytest.raises(ValueError, match=r"expected an array \[2, 16, 16\], or T of them, got"):
            read(tmp_path / "other.npy", info)


def test_what_cannot_be_seen(folder: Path, info: DataInfo) -> None:
    path = folder / "left" / "0.aedat"
    with pytest.raises(
        ValueError, match=r"0\.aedat: the network has no record of how .*; give an array \[T, C, H, W\]"
    ):
        seen(path, replace(info, slicing={}))
    with pytest.raises(ValueError, match="slices: expected window to be a whole number"):
        seen(path, replace(info, slicing={**asdict(Slicing(1, 1, 1)), "window": "wide"}))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"0\.aedat: the file is damaged \(truncated 1\); the rest is used"):
        assert seen(path, info).sum() == 199
    (folder / "left" / "a.png").touch()
    with pytest.raises(ValueError, match="an image has 1 or 3; give a recording"):
        read(folder / "left" / "a.png", info)
    with pytest.raises(ValueError, match=r"set: no recordings in this folder; expected files such as \.aedat"):
        find([folder], info)


def test_a_record_of_slices_is_checked(info: DataInfo) -> None:
    for wrong in ([1], {"window": [5]}, {"window": None}):
        with pytest.raises(ValueError, match=r"data\.json: .*slicing must hold numbers, texts and flags"):
            DataInfo.of({**info.as_dict(), "slicing": wrong}, "data.json")
    earlier = info.as_dict()
    del earlier["slicing"]
    assert DataInfo.of(earlier, "data.json").slicing == {}
