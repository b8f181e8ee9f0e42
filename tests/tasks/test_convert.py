"""From a run to a converted file: what it says of itself, and the commands that take it."""

from pathlib import Path

import pytest
import torch

from rheobase import recipes, train
from rheobase.data import load
from rheobase.deploy.formats import native
from rheobase.deploy.quantize import quantize
from rheobase.report.page import render
from rheobase.tasks.convert import calibration_images, convert_run
from rheobase.tasks.evaluate import evaluate_run
from rheobase.tasks.inspect import inspect_file
from rheobase.tasks.open import about
from rheobase.tasks.sweep import sweep_network
from rheobase.tasks.verify import verify
from rheobase.train.runs import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = recipes.get("demo").changed(["neuron=relu", "timesteps=1", "epochs=3", "batch_size=128"])
    return train.fit(recipe, out=tmp_path_factory.mktemp("runs") / "relu", device="cpu")


@pytest.fixture(scope="module")
def file(run: Run) -> Path:
    path = run.folder / "calibrated-t4.safetensors"
    native.save(convert_run(run, "calibrated", 4, images=100), path)
    return path


def test_it_says_where_it_comes_from(run: Run, file: Path) -> None:
    network = native.load(file)
    stated = about(network, file)
    assert (stated.recipe.timesteps, stated.recipe.decay, stated.recipe.reset) == (4, 1.0, "soft")
    assert stated.recipe.neuron == "lif"
    assert stated.data == run.data
    assert network.info["converted"] == {
        "from": "relu",
        "recipe": "demo",
        "sha256": run.trained().sha256(),
        "method": "calibrated",
        "options": {},
        "images": 100,
        "seed": 0,
    }


def test_it_is_evaluated_at_its_own_and_at_other_numbers_of_steps(run: Run, file: Path) -> None:
    relu, own, longer = evaluate_run(run), evaluate_run(file), evaluate_run(file, timesteps=16)
    assert own.accuracy > relu.accuracy - 0.05
    rows = sweep_network(file, timesteps=16, device="cpu")
    assert [row.timesteps for row in rows] == [1, 2, 4, 8, 16]
    assert rows[2].accuracy == pytest.approx(own.accuracy, abs=0.006)  # two of 359 images may flip in float32
    assert rows[4].accuracy == pytest.approx(longer.accuracy, abs=0.006)
    assert rows[4].joule > rows[3].joule > 0
    assert rows[4].multiplications == 4 * rows[2].multiplications


def test_an_exported_file_is_verified_against_the_converted_one(run: Run, file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from rheobase.deploy.formats import onnx

    onnx.write(native.load(file), tmp_path / "network.onnx", run.data.shape)
    found = verify(tmp_path / "network.onnx", file)
    assert found.passed
    with pytest.raises(ValueError, match="was converted from a ReLU network, which has no spikes to compare; measure"):
        verify(tmp_path / "network.onnx", run)
    with pytest.raises(ValueError, match="does not show its spikes; give the network that it was exported from"):
        verify(file, tmp_path / "network.onnx")


def test_spikes_of_an_onnx_file_are_refused_without_its_packages(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    path.touch()
    for look in (evaluate_run, sweep_network, inspect_file, lambda path: verify(file, path)):
        with pytest.raises(ValueError, match="does not show its spikes; give the network that it was exported from"):
            look(path)


def test_nir_files_are_simulated(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("nir")
    from rheobase.deploy.formats import nir

    hard = convert_run(run, "data-norm", 4, images=50, reset="hard")
    native.save(hard, tmp_path / "hard.safetensors")
    nir.write(hard, tmp_path / "network.nir", run.data.shape)
    found = verify(tmp_path / "network.nir", tmp_path / "hard.safetensors")
    assert found.verdict == "the same network, spike for spike"
    assert found.simulation is not None
    assert found.simulation.different == 0


def test_a_report_of_integers(run: Run, file: Path, tmp_path: Path) -> None:
    images = calibration_images(run.open_data(None), run.recipe, 40, 0)
    native.save(quantize(native.load(file), images, 4), tmp_path / "int8.safetensors")
    found = inspect_file(tmp_path / "int8.safetensors", images=50)
    assert found["accuracy_by_timesteps"][3] > 0.5


def test_a_report_of_the_file(file: Path) -> None:
    found = inspect_file(file, images=50)
    assert len(found["layers"]) == 7
    assert found["accuracy_by_timesteps"][3] > 0.5
    assert found["operations"]["additions"] > 0
    page = render(found)
    assert "calibrated" in page
    assert "accuracy, 50 test images" in page
    assert f"Converted for T = {found['recipe']['timesteps']}. 50 test images." in page
    assert f"timesteps, file {file.name}" in page
    assert "Command, and how the network was converted." in page
    for title in ("Learning", "Gradient flow", "Membrane potentials", "Reproduce this run"):
        assert title not in page
    for title in ("Accuracy against timesteps", "Confusion matrix", "Firing rates", "Operations and energy"):
        assert title in page
    folded = render(found | {"environment": {}})  # one that was not converted
    assert f"Trained at T = {found['recipe']['timesteps']}. 50 test images." in folded
    assert "{}" not in folded
    assert "Reproduce this page" in folded


def test_the_seed_chooses_the_images() -> None:
    dataset, recipe = load("digits"), recipes.get("demo")
    one, same, other = (calibration_images(dataset, recipe, 9, seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.shape == (9, 1, 8, 8)
    assert len(calibration_images(dataset, recipe, 10**6, 0)) == len(dataset.train)


def test_mistakes(run: Run, tmp_path: Path) -> None:
    events = load("digits-dvs", timesteps=2)
    with pytest.raises(ValueError, match="digits-dvs holds recordings; only networks for images can be converted"):
        calibration_images(events, recipes.get("demo"), 3, 0)
    spiking = train.fit(
        recipes.get("demo").changed(["epochs=1", "timesteps=1", "batch_size=512"]), out=tmp_path / "lif"
    )
    with pytest.raises(ValueError, match="are not ReLUs; give a network that was trained with neuron=relu"):
        convert_run(spiking, "rmp", 4)
    with pytest.raises(ValueError, match="method qcfs needs a network that was trained with neuron=qcfs"):
        convert_run(run, "qcfs", 4)
    with pytest.raises(ValueError, match="do not spike; make a spiking network of it with `rheobase convert`"):
        sweep_network(run.folder)
