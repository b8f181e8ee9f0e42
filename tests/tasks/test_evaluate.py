"""Whoever opens a run compares its data with the record: classes, shapes, content; its own normalisation decides."""

import re
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rheobase import cli, recipes, train
from rheobase.data import DataInfo
from rheobase.data.feed import generator
from rheobase.deploy.formats import native
from rheobase.tasks.evaluate import evaluate_run
from rheobase.tasks.inspect import inspect_run
from rheobase.tasks.open import folded
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.train.short_runs import StopAt

Image = pytest.importorskip("PIL.Image", reason="reading images needs pillow")
SHADES = {"dark": 40, "light": 200}
OTHER = "these data are not the ones that .* was trained on: labels or content differ"


def draw(folder: Path, factor: float = 1.0) -> Path:
    """Ten pictures per class, brighter in the class `light`; every fifth is for testing."""
    for name, shade in SHADES.items():
        (folder / name).mkdir(parents=True)
        for i in range(10):
            noise = torch.randint(-9, 10, (9, 12, 3), generator=generator(shade, i))
            pixels = ((noise + shade) * factor).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / name / f"{i}.png")
    return folder


def recipe(*changes: str) -> recipes.Recipe:
    settings = ["network=resnet8", "image_size=8", "epochs=20", "batch_size=8", "padding=1", *changes]
    return recipes.get("images_resnet19").changed(settings)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("data") / "own")


@pytest.fixture(scope="module")
def run(pictures: Path) -> Run:
    return train.fit(recipe(), data=pictures, out=pictures.with_name("run"), device="cpu")


def predicted(run: Run, pictures: Path) -> float:
    """The share of test images that `predict` gets right."""
    right = []
    for name in SHADES:
        for i in (4, 9):
            path = pictures / name / f"{i}.png"
            found = CliRunner().invoke(cli.app, ["predict", str(run.folder), str(path), "--top", "1"])
            assert found.exit_code == 0, found.output
            right.append(found.output.split(": ")[1].startswith(name))
    return sum(right) / len(right)


def test_darkened_pictures_are_normalised_as_the_run_was(run: Run, pictures: Path, tmp_path: Path) -> None:
    darkened = draw(tmp_path / "darkened", 0.4)
    assert evaluate_run(run.folder, data=pictures, device="cpu").accuracy == predicted(run, pictures) == 1.0
    with pytest.warns(UserWarning, match=OTHER):
        found = evaluate_run(run.folder, data=darkened, device="cpu").accuracy
    assert found == predicted(run, darkened) == 0.5  # all of them are dark now
    with pytest.warns(UserWarning, match=OTHER):
        assert inspect_run(run, data=darkened)["accuracy_by_timesteps"][recipe().timesteps - 1] == 0.5
    native.save(folded(run)[1], tmp_path / "folded.safetensors")
    with pytest.warns(UserWarning, match=OTHER):
        assert evaluate_run(tmp_path / "folded.safetensors", data=darkened, device="cpu").accuracy == 0.5


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    folder = draw(tmp_path / "renamed")
    (folder / "light").rename(folder / "bright")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        lambda run, file: ["eval", run],
        lambda run, file: ["eval", file],
        lambda run, file: ["verify", file, run],
        lambda run, file: ["fold", run],
        lambda run, file: ["export", run, "--to", "nir", "--int8"],
        lambda run, file: ["analyze", run],
        lambda run, file: ["report", run],
        lambda run, file: ["paper", "fig6", run],
        lambda run, file: ["paper", "table6", run],
    ],
    ids=["eval", "eval-file", "verify", "fold", "export", "analyze", "report", "fig6", "table6"],
)
def test_other_classes_are_refused_by_every_command(
    run: Run,
    renamed: Path,
    tmp_path: Path,
    command: Callable[[Path, Path], list[object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("warnings.showwarning", None, raising=False)
    native.save(folded(run)[1], tmp_path / "folded.safetensors")
    words = [*command(run.folder, tmp_path / "folded.safetensors"), "--data", renamed]
    monkeypatch.setattr(sys, "argv", ["rheobase", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert "was trained on other classes than these data have: bright instead of light; give its own data" in said
    assert len(said.splitlines()) == 1


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_training_continues_with_the_same_data_only(pictures: Path, renamed: Path, tmp_path: Path) -> None:
    out, own = tmp_path / "run", shutil.copytree(pictures, tmp_path / "own")
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), data=own, out=out, device="cpu", reporter=StopAt(3))
    before = content(out)
    with pytest.raises(ValueError, match="other classes than these data have: bright instead of light"):
        train.fit(recipe(), data=renamed, out=out, resume=True, device="cpu")
    path = own / "dark" / "3.png"
    kept = path.read_bytes()
    Image.new("RGB", (12, 9)).save(path)
    with pytest.raises(ValueError, match=f"{OTHER}; continue it with its own data, or add --new-data to"):
        train.fit(recipe(), data=own, out=out, resume=True, device="cpu")
    assert content(out) == before
    path.write_bytes(kept)
    assert len(train.fit(recipe(), data=own, out=out, resume=True, device="cpu").rows()) == 20


def test_training_goes_on_knowingly_with_other_data(
    pictures: Path,
    renamed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("warnings.showwarning", None, raising=False)
    out, own = tmp_path / "run", shutil.copytree(pictures, tmp_path / "own")
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), data=own, out=out, device="cpu", reporter=StopAt(3))
    step, before = checkpoint.newest_step(out / "checkpoints"), Run(out).data
    Image.new("RGB", (12, 9)).save(own / "dark" / "3.png")
    with pytest.raises(ValueError, match="other classes than these data have: bright instead of light"):
        train.fit(recipe(), data=renamed, out=out, resume=True, new_data=True, device="cpu")
    assert Run(out).data == before
    monkeypatch.setattr(sys, "argv", ["rheobase", "train", "--resume", str(out), "--data", str(own), "--new-data"])
    with warnings.catch_warnings(action="default"), pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert re.search(OTHER, capsys.readouterr().err)
    run = Run(out)
    assert len(run.rows()) == 20
    after = Run(out).data
    assert after.fingerprint != before.fingerprint
    assert (after.mean, after.std) == (before.mean, before.std)  # the network has learnt with these
    assert DataInfo.of(run.read(f"data-until-{step:08d}.json"), out) == before
    evaluate_run(out, data=own, device="cpu")  # they are its data now: without a warning
    with pytest.raises(ValueError, match="new_data is for a run that is resumed; add resume=True"):
        train.fit(recipe(), data=own, out=tmp_path / "other", new_data=True, device="cpu")
