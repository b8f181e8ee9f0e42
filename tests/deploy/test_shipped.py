"""Networks that come with the package: made from a run, used by name, and as accurate as it is said."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from rheobase import cli, recipes, train
from rheobase.data import load
from rheobase.deploy import shipped
from rheobase.tasks.evaluate import evaluate_run
from tools import ship
from tools.readme import ROOT, tables


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = recipes.get("demo").changed(["epochs=8", "timesteps=2"])
    return train.fit(recipe, out=tmp_path_factory.mktemp("runs") / "run", device="cpu").folder


@pytest.fixture
def found(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What was measured of a network 'digits' that this package now has."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "networks")
    return ship.ship(run, shipped.FOLDER / "digits.safetensors", data=None, device="cpu")


def call(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_file_has_8_bits_per_weight_and_its_own_accuracy(run: Path, found: dict[str, float]) -> None:
    path = shipped.find(Path("digits"))
    assert found["bytes"] == path.stat().st_size < 110_000  # 78 thousand weights
    with safe_open(path, "pt") as file:
        assert str(file.get_tensor("stem.weight").dtype) == "torch.int8"
    assert found["accuracy"] == evaluate_run(path, device="cpu").accuracy
    assert found["trained_accuracy"] == evaluate_run(run, device="cpu").accuracy
    assert abs(found["accuracy"] - found["trained_accuracy"]) < 0.02
    assert found["accuracy"] > 0.8


def test_eval_predict_and_export_take_its_name(
    found: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"test accuracy {100 * found['accuracy']:.2f} %" in call("eval", "digits", "--device", "cpu")
    assert "test accuracy" in call("eval", "digits", "--timesteps", "3", "--device", "cpu")
    np.save("four.npy", load("digits").test.images[0].numpy())
    said = call("predict", "digits", "four.npy")
    pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
    call("export", "digits", "--to", "nir", "--out", "network.nir")
    assert call("predict", "network.nir", "four.npy") == said
    assert f"test accuracy {100 * found['accuracy']:.2f} %" in call("eval", "network.nir", "--device", "cpu")
    assert "digits-int8.nir" in call("export", "digits", "--to", "nir", "--int8")


def test_a_name_that_is_not_known_is_told_the_known_ones(found: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"dgits is not the folder of a run, a file, or a network .*\(digits\)"):
        evaluate_run(Path("dgits"))


def test_a_network_too_large_for_the_package_is_not_left_there(
    run: Path, found: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "LIMIT", 150_000)
    with pytest.raises(ValueError, match=r"with more\.safetensors, the networks of the package would have \d+ bytes"):
        ship.ship(run, shipped.FOLDER / "more.safetensors", data=None, device="cpu")
    assert shipped.names() == ["digits"]


def test_readme_shows_the_accuracy_of_the_file(found: dict[str, float], tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "digits.json").write_text(json.dumps(found))
    (table,) = tables(tmp_path)
    assert f"| `digits` | 2 | {100 * found['trained_accuracy']:.2f} | {100 * found['accuracy']:.2f} |" in table


def test_every_network_of_the_package_was_measured() -> None:
    for name in shipped.names():
        content = json.loads((ROOT / "results" / "shipped" / f"{name}.json").read_text())
        digest = hashlib.sha256(shipped.find(Path(name)).read_bytes()).hexdigest()
        assert content["sha256"] == digest, f"measure it: python -m tools.ship RUN {name}"
