"""Networks that come with the package: made from a run, used by name as runs are, and as accurate as it is said."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from rheobase import cli, recipes, train
from rheobase.data import load
from rheobase.deploy import shipped
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train.record import checksum
from rheobase.train.runs import Run, load_network
from tools import ship
from tools.results import ROOT, tables

Found = dict[str, float]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = recipes.get("demo").changed(["epochs=8", "timesteps=2"])
    return train.fit(recipe, out=tmp_path_factory.mktemp("runs") / "run", device="cpu").folder


@pytest.fixture
def found(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    """What was measured of a network 'digits' that this package now has."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "networks")
    return ship.ship(run, "digits", data=None, device="cpu")


def call(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_has_8_bits_per_weight_and_its_own_accuracy(run: Path, found: Found) -> None:
    folder = shipped.find(Path("digits"))
    assert found["bytes"] == sum(len(data) for data in content(folder).values())
    (weights,) = folder.rglob("weights.safetensors")
    assert weights.stat().st_size < 100_000  # 78 thousand weights
    with safe_open(weights, "pt") as file:
        assert str(file.get_tensor("stem.weight").dtype) == "torch.int8"
        assert str(file.get_tensor("soma.weight").dtype) == "torch.float32"
    assert found["accuracy"] == evaluate_run(folder, device="cpu").accuracy
    assert found["trained_accuracy"] == evaluate_run(run, device="cpu").accuracy
    assert abs(found["accuracy"] - found["trained_accuracy"]) < 0.02
    assert found["accuracy"] > 0.8


def test_it_is_evaluated_in_the_precision_of_its_training(
    run: Path, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found["precision"] == "fp32"
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "networks")
    other = shutil.copytree(run, tmp_path / "other")
    environment = json.loads((other / "environment.json").read_text()) | {"precision": "bf16"}  # on another device
    (other / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(ValueError, match=r"other computed in bf16, but this device would evaluate in fp32; give one"):
        ship.ship(other, "other", data=None, device="cpu")
    assert shipped.names() == ["digits"]


@pytest.mark.usefixtures("found")
def test_every_weight_is_within_half_a_step_and_the_rest_is_exact(run: Path) -> None:
    trained, own = load_network(Run(run)).state_dict(), load_network(Run(shipped.find(Path("digits")))).state_dict()
    assert trained.keys() == own.keys()
    synapses = [name for name in own if "soma" not in name and name.endswith("weight")]
    assert len(synapses) == 10
    for name, tensor in own.items():
        if name not in synapses:
            assert torch.equal(tensor, trained[name]), name
            continue
        step = trained[name].abs().flatten(1).amax(1) / 127
        error = (tensor - trained[name]).abs().flatten(1).amax(1)
        assert (error <= 0.5001 * step).all(), name
        assert (error > 0).any(), name


def test_every_command_takes_its_name(found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = content(shipped.FOLDER)
    assert f"test accuracy {100 * found['accuracy']:.2f} %" in call("eval", "digits", "--device", "cpu")
    assert "test accuracy" in call("eval", "digits", "--timesteps", "3", "--device", "cpu")
    assert "digits" in call("models")
    assert "findings" in call("analyze", "digits", "--images", "9")
    assert "digits-report.html" in call("report", "digits", "--images", "9")
    assert "wrote digits-folded.safetensors" in call("fold", "digits")
    assert "spike for spike" in call("verify", "digits-folded.safetensors", "digits", "--device", "cpu")
    call("paper", "fig6", "digits", "--images", "2", "--device", "cpu")
    np.save("four.npy", load("digits").test.images[0].numpy())
    said = call("predict", "digits", "four.npy")
    with pytest.raises(ValueError, match=r"^digits-folded\.safetensors already exists; choose another file"):
        call("fold", "digits")
    pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
    assert "rheobase verify network.nir digits" in call("export", "digits", "--to", "nir", "--out", "network.nir")
    assert call("predict", "network.nir", "four.npy") == said
    assert "digits-int8.nir" in call("export", "digits", "--to", "nir", "--int8")
    assert content(shipped.FOLDER) == before, "the package is not written to"


@pytest.mark.usefixtures("found")
def test_training_starts_from_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "epochs=1", "--set", "timesteps=2", "--freeze", "body", "--keep-best", "--device", "cpu"]
    said = call("train", "demo", "--from", "digits", *settings, "--out", "tuned")
    assert "starts from digits: 39 of 39 tensors" in said.splitlines()[0]
    start = Run(Path("tuned")).start
    assert start is not None
    assert (start["from"], len(start["sha256"])) == ("digits", 64)
    assert Run(Path("tuned")).rows()[0]["test_accuracy"] > 0.8
    assert "test accuracy" in call("eval", "tuned/best", "--device", "cpu")
    assert Run(Path("tuned/best")).start == start
    call("report", "tuned", "--images", "9")
    assert "rheobase train demo --from digits --set" in Path("tuned/report.html").read_text()


@pytest.mark.usefixtures("found")
def test_it_is_not_resumed(tmp_path: Path) -> None:
    copied = shutil.copytree(shipped.find(Path("digits")), tmp_path / "copied")
    with pytest.raises(ValueError, match=r"copied has weights but no training state; start from it with --from"):
        train.fit(out=copied, resume=True, device="cpu")


@pytest.mark.usefixtures("found")
def test_messages_name_it_as_its_user_does() -> None:
    opened = Run(shipped.find(Path("digits")))
    assert str(opened) == "digits"
    with pytest.raises(
        ValueError, match=r"^digits was trained on images of \[C, H, W\] = \[1, 8, 8\], these data have"
    ):
        opened.data.refuse_others(replace(opened.data, size=9), opened)


@pytest.mark.usefixtures("found")
def test_a_name_that_is_not_known_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"dgits is not the folder of a run, a file, or a network .*\(digits\)"):
        evaluate_run(Path("dgits"))
    with pytest.raises(ValueError, match=r"dgits is not the folder of a run, a file, or a network .*\(digits\)"):
        call("report", "dgits")


def test_the_limit_is_that_of_one_network(run: Path, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "LIMIT", found["bytes"])
    before = content(shipped.FOLDER.parent)
    assert ship.ship(run, "second", data=None, device="cpu")["bytes"] == found["bytes"]
    assert shipped.names() == ["digits", "second"]
    shutil.rmtree(shipped.FOLDER / "second")
    monkeypatch.setattr(ship, "LIMIT", found["bytes"] - 1)
    with pytest.raises(
        ValueError, match=rf"^more would take {found['bytes']} bytes in the package, more than \d+; ship a"
    ):
        ship.ship(run, "more", data=None, device="cpu")
    assert content(shipped.FOLDER.parent) == before


def test_readme_shows_the_accuracy_of_the_network(found: Found, tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "digits.json").write_text(json.dumps(found))
    (table,) = tables(tmp_path)
    assert f"| `digits` | 2 | {100 * found['trained_accuracy']:.2f} | {100 * found['accuracy']:.2f} |" in table


def test_every_network_of_the_package_was_measured() -> None:
    assert shipped.names()
    for name in shipped.names():
        found = json.loads((ROOT / "results" / "shipped" / f"{name}.json").read_text())
        digest = checksum(ship.files(shipped.find(Path(name))))
        assert found["sha256"] == digest, f"measure it: python -m tools.ship RUN {name}"
