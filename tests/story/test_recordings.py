"""The way of a user's own recordings: a folder of every format, a training, and each later step on it."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase.analysis.operations import IMAGES, operations
from rheobase.cli import main
from rheobase.data.events import Events
from rheobase.data.feed import first_images
from rheobase.tasks.open import folded
from rheobase.train.runs import Run
from tests.data import recordings
from tests.story.plugin import Command

pytestmark = pytest.mark.slow

WRITERS: dict[str, Callable[[Events], bytes]] = {
    "2.aedat": recordings.aedat_2,
    "3.aedat": recordings.aedat_3,
    "4.aedat4": recordings.aedat_4,
    "5.dat": recordings.dat,
    "6.raw": recordings.evt_2,
    "7.raw": recordings.evt_3,
    "8.npz": recordings.npz,
    "9.csv": recordings.csv,
}
SENSORS = {"4.aedat4": (346, 260), "7.raw": (320, 200), "9.csv": (64, 80)}
SMALL = [
    "epochs=12",
    "evaluate_every=12",
    "timesteps=3",
    "image_size=16",
    "batch_size=8",
    "network=resnet8",
    "padding=0",
    "slice_by=count",
]


def polar(seed: int, brighter: bool, width: int, height: int) -> Events:
    """A recording with ten events of one polarity to one of the other."""
    events = recordings.recording(seed, 900, width, height, until=50_000 + 1000 * seed)
    p = (np.arange(900) % 11 > 0) == brighter
    return Events(events.t, events.x, events.y, p.astype(np.uint8), width, height)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of recordings and a run on it."""
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    folder = tmp_path_factory.mktemp("events")
    for part in ("train", "val"):
        for name, brighter in (("up", True), ("down", False)):
            (folder / "set" / part / name).mkdir(parents=True)
            for seed, (file, write) in enumerate(WRITERS.items(), 20 * (part == "val") + 10 * brighter):
                events = polar(seed, brighter, *SENSORS.get(file, (128, 128)))
                (folder / "set" / part / name / file).write_bytes(write(events))
    settings = [word for setting in SMALL for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RHEOBASE_CACHE", str(folder / "cache"))
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setattr(sys, "argv", ["rheobase", "train", "events_resnet17", "--data", "set", "--out", "run", *settings])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return folder


@pytest.fixture
def place(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RHEOBASE_CACHE", str(trained / "cache"))
    monkeypatch.chdir(trained)
    return trained


def test_train_and_evaluate(place: Path, rheobase: Command) -> None:
    info = Run(place / "run").data
    assert (info.name, info.classes, info.timesteps, info.shape) == ("recordings", ("down", "up"), 3, (2, 16, 16))
    assert info.slicing["slice_by"] == "count"
    code, out, err = rheobase("eval", "run", "--data", "set")
    assert (code, err) == (0, "")
    assert "test accuracy 100.00 %" in out


def test_the_energy_is_close_to_what_is_counted(place: Path, rheobase: Command) -> None:
    (row,) = json.loads(rheobase("compare", "run", "--json")[1])["rows"]
    found = Run(place / "run")
    few, _ = first_images(found.open_data(Path("set")), found.recipe, IMAGES, torch.float64)
    assert row["joule"]["mean"] == pytest.approx(operations(folded(found)[1], few).energy(), rel=0.2)
    rates = json.loads(rheobase("eval", "run", "--json")[1])["input_rates"]
    assert found.rows()[-1]["input_rates"] == rates
    assert 0 < sum(rates.values()) < 1


def test_predict_every_format(place: Path, rheobase: Command) -> None:
    for name in ("up", "down"):
        code, out, err = rheobase("predict", "run", f"set/val/{name}", "--top", "1")
        assert (code, err) == (0, "")
        assert [line.partition(": ")[2].split()[0] for line in out.splitlines()] == [name] * len(WRITERS)
    code, out, err = rheobase("predict", "run", "set/val/up/9.csv", "set/val/down/7.raw", "--top", "1")
    assert (code, err) == (0, "")
    np.save(place / "frames.npy", np.zeros((5, 2, 16, 16)))
    code, out, err = rheobase("predict", "run", "frames.npy")
    assert (code, err) == (0, "")
    np.save(place / "frames.npy", np.zeros((5, 2, 16, 15)))
    assert (
        "expected an array [2, 16, 16], or T of them, got [5, 2, 16, 15]" in rheobase("predict", "run", "frames.npy")[2]
    )


def test_deployed_networks_take_recordings(place: Path, rheobase: Command) -> None:
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: install rheobase[onnx]")
    pytest.importorskip("nir", reason="needs nir: install rheobase[nir]")
    said = rheobase("predict", "run", "set/val/up/6.raw")[1]
    for kind in ("nir", "onnx"):
        code, _, err = rheobase("export", "run", "--to", kind)
        assert (code, err) == (0, "")
        assert rheobase("predict", f"run/network.{kind}", "set/val/up/6.raw")[1] == said
    code, out, err = rheobase("verify", "run/network.nir", "run", "--data", "set", "--images", "4")
    assert (code, err) == (0, "")
    assert "spike for spike" in out
    code, _, err = rheobase("report", "run", "--data", "set", "--out", "report.html")
    assert (code, err) == (0, "")
    assert (place / "report.html").stat().st_size > 10_000


def test_what_is_in_the_set(place: Path, rheobase: Command) -> None:
    options = ["--size", "16", "--timesteps", "3", "--slice-by", "count", "--window", "100", "--samples", "1"]
    code, out, err = rheobase("data", "recordings", "--root", "set", *options)
    assert (code, err) == (0, "")
    assert "recordings as 3 x 2 x 16 x 16 (timesteps, polarities, height, width), 100 events per slice" in out
    assert "damage in the files: none" in out


def test_what_is_in_every_recording(place: Path, rheobase: Command) -> None:
    files = [f"set/train/up/{file}" for file in WRITERS]
    code, out, err = rheobase("recording", *files, "--out", "all.png")
    assert (code, err) == (0, "")
    for file in WRITERS:
        width, height = SENSORS.get(file, (128, 128))
        assert f"{file}: 900 events in 0.0" in out
        assert f"sensor of {width} x {height}" in out
    assert (place / "all.png").stat().st_size > 10_000
