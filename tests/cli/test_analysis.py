"""The commands of analysis on a small run; the figures of the paper at small sizes."""

import json
import operator
import os
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rheobase import recipes
from rheobase.analysis.operations import LayerOperations, Operations
from rheobase.analysis.sizes import synapses
from rheobase.cli import app
from rheobase.data import load
from rheobase.data.holdout import hold_out
from rheobase.models import build
from rheobase.paper import ablation, inference, theory, training
from rheobase.paper.isolated import Failure, isolated
from rheobase.paper.result import CPU
from rheobase.report.charts import Chart
from rheobase.report.plots import draw
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.deploy.networks import randomise
from tests.runs import made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    run = Run.create(folder, recipes.get("demo").changed(["timesteps=3"]), load("digits").info, torch.device("cpu"))
    checkpoint.save(run.checkpoints, 1, {"weights": randomise(run.network(), 8).float().state_dict()}, {})
    return folder


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, ValueError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_analyze_a_run(run: Path) -> None:
    output = call("analyze", run, "--images", 9)
    assert "body.2.soma2" in output
    assert "potential / v_th" in output
    assert "additions" in output
    assert "findings" in output


def test_analyze_a_network() -> None:
    output = call("analyze", "--network", "resnet8")
    assert "body.2" in output
    assert "firing rates: 0.1" in output
    assert "this will train" in output


def test_analyze_wants_one_of_both(run: Path) -> None:
    for arguments in ([], [run, "--network", "resnet8"]):
        with pytest.raises(ValueError, match="give either a run or a network"):
            call("analyze", *arguments)


def test_paper_writes_data_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    output = call("paper", "fig4", "--out", tmp_path)
    assert "The paper:" in output
    content = json.loads((tmp_path / "fig4.json").read_text())
    assert len(content["data"]["rows"]) == 3
    assert sum(content["data"]["rows"][1]["shares"]) == pytest.approx(1)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".svg", ".png"}


def test_theorem_1_and_lemma_2_are_within_5_percent() -> None:
    found = theory.theorem1(channels=64, blocks=2, probes=3, networks=[("plain20", 4, 4, 0.0)]).data
    assert [row["ratio"] for row in found["ratios"]] == [1.0, 1.8, 2.0, 3.0]
    for row in (*found["ratios"], *found["shortcuts"]):
        assert row["phi"] == pytest.approx(row["predicted_phi"], rel=0.05)
    for row in found["lemma2"]:
        assert row["phi"] == pytest.approx(row["second_moments"], rel=0.05)
        assert row["phi"] == pytest.approx(row["gain"] / 2, rel=0.05)
    assert all(row["second_moments"] == pytest.approx(1, rel=0.05) for row in found["ratios"])  # yet phi is not


def test_theorem_2_is_within_5_percent_where_nothing_fires() -> None:
    rows = theory.theorem2(timesteps=5, neurons=20_000).data["rows"]
    quiet = [row for row in rows if max(row["fired"]) < 1e-3]
    assert len(quiet) == 2
    assert all(row["variance"] == pytest.approx(row["without_reset"], rel=0.05) for row in quiet)


def test_figure_6_and_table_6_of_a_run(run: Path) -> None:
    found = inference.fig6(run=run, images=7)
    assert len(found.data["resnet8"]) == 7
    assert "7 test images of digits" in found.source
    counted = inference.table6(run=run, images=5)
    assert counted.data["counts"]["as the paper counts"][0] > 0
    assert any("ResNet-34-large, counted from its shapes: 1.45e+10" in sentence for sentence in counted.comparison)


@pytest.mark.parametrize("command", ["analyze", "report", "paper fig6", "paper table6"])
def test_outputs_of_neunorm_are_not_analysed_as_spikes(tmp_path: Path, command: str) -> None:
    run = made(tmp_path / "run", "normalisation=neunorm", accuracies=[0.5])
    checkpoint.save(run.checkpoints, 1, {"weights": run.network().state_dict()}, {})
    with pytest.raises(ValueError, match="run: the outputs of NeuNorm are not spikes, so there are none to look at"):
        call(*command.split(), run.folder)


def test_multiplications_of_the_paper_for_resnet19() -> None:
    with torch.device("meta"):
        layers = {layer.name: layer.multiplications for layer in synapses(build("resnet19"), (3, 32, 32))}
    assert f"{6 * (layers['stem'] + layers['head.hidden']):.1e}" == f"{inference.PAPER['resnet19'][1]:.1e}"


def test_tables_compare_runs_with_the_paper(tmp_path: Path) -> None:
    recipe = recipes.get("cifar10_resnet19_t2")
    run = Run.create(tmp_path / "run", recipe, load("digits").info, torch.device("cpu"))
    with pytest.raises(ValueError, match="no test accuracy"):
        training.table("table1", [tmp_path / "run"])
    for epoch, accuracy in ((1, 0.935), (2, 0.93)):
        run.append({"epoch": epoch, "test_accuracy": accuracy})
    found = training.table("table1", [tmp_path / "run"])
    assert "93.00 % after 2 of 110 epochs (best epoch 93.50 %). The paper reports 92.34 %" in found.comparison[0]
    assert sum("Missing" in sentence for sentence in found.comparison) == 5


def test_simulated_recordings_are_marked(tmp_path: Path) -> None:
    data = load("digits-dvs", timesteps=2).info
    run = Run.create(tmp_path / "run", recipes.get("digits_dvs"), data, torch.device("cpu"))
    run.append({"epoch": 1, "test_accuracy": 0.9})
    found = training.table("table3", [tmp_path / "run"])
    assert found.comparison[0].endswith("The recordings are simulated, so this says nothing about real ones.")
    assert found.data["rows"][0]["simulated"]


def test_simulated_recordings_of_earlier_versions_are_marked(tmp_path: Path) -> None:
    data = load("digits-dvs", timesteps=2).info
    run = Run.create(tmp_path / "run", recipes.get("digits_dvs"), data, torch.device("cpu"))
    run.append({"epoch": 1, "test_accuracy": 0.9})
    recorded = ("name", "classes", "channels", "size", "mean", "std")  # by the first versions
    (run.folder / "data.json").write_text(json.dumps({name: run.read("data.json")[name] for name in recorded}))
    found = training.table("table3", [tmp_path / "run"])
    assert found.comparison[0].endswith("The recordings are simulated, so this says nothing about real ones.")


def test_tables_say_what_an_inference_costs(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "timesteps=2", accuracies=[0.9])
    found = training.table("table1", [run.folder])
    row = found.data["rows"][0]
    # 8 x 8 pixels meet 16 filters of 3 x 3: (3 * 8 - 2) ** 2 weights each, without the border; then come 64 averages
    assert row["multiplications"] == 2 * (22**2 * 16 + 64 * 10)
    assert row["joule"] == pytest.approx(0.9e-12 * row["additions"] + 4.6e-12 * row["multiplications"])
    assert (
        f"{row['additions']:.3g} additions and 1.68e+04 multiplications, {1e3 * row['joule']:.3g} mJ"
        in found.comparison[0]
    )


def test_accuracy_on_held_out_images_is_marked(tmp_path: Path) -> None:
    recipe = recipes.get("cifar10_resnet19_t2").changed(["holdout=100"])
    run = Run.create(tmp_path / "run", recipe, hold_out(load("digits"), 100).info, torch.device("cpu"))
    run.append({"epoch": 1, "test_accuracy": 0.9})
    found = training.table("table1", [tmp_path / "run"])
    assert found.comparison[0].endswith("It was tested on held-out training images, not on the test images.")
    assert found.data["rows"][0]["holdout"] == 100


def test_a_run_that_started_from_trained_weights_is_marked(tmp_path: Path) -> None:
    start = {"from": "calibrated-t4.safetensors", "sha256": "0" * 64}
    recipe, cpu = recipes.get("cifar10_hybrid19"), torch.device("cpu")
    run = Run.create(tmp_path / "run", recipe, load("digits").info, cpu, start=start, weights={"w": torch.ones(1)})
    run.append({"epoch": 1, "test_accuracy": 0.9})
    found = training.table("table1", [tmp_path / "run"])
    assert found.comparison[0].endswith("It started from the weights of calibrated-t4.safetensors.")


def test_tables_name_the_other_systems_of_the_paper(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipes.get("demo"), load("digits").info, torch.device("cpu"))
    run.append({"epoch": 1, "test_accuracy": 0.9})
    for name, expected in {
        "table1": "on cifar10, as the paper prints them: ANN-SNN, VGG-16, T = 2500: 91.55 % (Sengupta et al. 2019);",
        "table2": "; SLAYER: 93.64 % (Shrestha & Orchard 2018); ",
        "table3": "; STBP: 60.50 % (Wu et al. 2019).",
    }.items():
        found = training.table(name, [tmp_path / "run"])
        assert expected in "\n".join(found.comparison)
    assert found.data["published"][0] == {
        "data": "dvscifar10", "source": "Sironi et al. 2018", "method": "HATS", "accuracy": 52.4, "network": None,
        "timesteps": None,
    }  # fmt: skip


def test_what_table_6_says_at_the_steps_of_the_paper_and_at_others() -> None:
    layers = [
        LayerOperations("stem", "image", 3.5e6, 0, 0, 0, 0),
        LayerOperations("body", "spikes", 2.0e9, 1.2e9, 0, 1.2e9, 0),
        LayerOperations("head.hidden", "averages", 2.1e6, 9, 0, 0, 0),
    ]
    for timesteps, expected in ((6, "Both run at T = 6"), (3, "This run has T = 3 (a factor of 0.5)")):
        counted = Operations(timesteps, 1, True, layers, 0, 0, 0, 0, 0)
        difference, multiplications = inference.beside_the_paper((1.8e9, 3.4e7, 2.2e9), counted)
        assert expected in difference
        assert f"fraction of 0.150 is used in the paper and {1.2 / 2 / timesteps:.3f} here" in difference
        assert "3.36e+07 at T = 6, the paper's 3.4e+07." in multiplications


def test_figure_2_of_a_sixth_of_an_epoch() -> None:
    norms = training.first_sixth(None, CPU, 1, 0.9, 0.0, True)
    assert (norms.steps, len(norms.weights)) == (6, 17)
    settings = [(0.9, 0.0, True), (1.0, 0.25, False), (1.0, 0.5, True)]
    partly = training.fig2_of(settings, {0: norms, 2: Failure("OutOfMemoryError")}, "digits", CPU)
    assert (len(partly.data["rows"]), partly.to_come) == (1, 1)
    assert partly.data["rows"][0]["calculated_ratio"] == pytest.approx(0.99, abs=0.01)
    assert "Did not finish: decay 0.5, width 1 (OutOfMemoryError)." in partly.comparison
    assert any("At width 0.9 the gradient keeps its size" in sentence for sentence in partly.comparison)


def test_the_ablation_has_all_variants_and_keeps_what_is_there() -> None:
    rows = ablation.variants()
    assert len(rows) == 21
    assert len({variant for _, _, variant in rows}) == 18  # the network of the paper has a row in every group
    setting = ablation.Setting(None, CPU, 2, 3, 8)
    accuracy, loss = ablation.accuracy_and_loss(ablation.Variant(8), setting)
    assert accuracy > 0.4
    found: dict[ablation.Variant, Any] = {
        ablation.Variant(8): (accuracy, loss),
        ablation.Variant(50): Failure("RuntimeError"),
        ablation.Variant(norm="none"): (0.1, float("nan")),
    }
    partly = ablation.ablation_of(found, setting, 15)
    assert [row["label"] for row in partly.data["rows"]] == ["no normalisation", "residual, 8 layers"]
    assert partly.data["rows"][0]["loss"] is None
    assert partly.data["failed"] == [{"label": "residual, 50 layers", "reason": "RuntimeError"}]


@pytest.mark.parametrize("depth", [8, 20, 34, 50])
@pytest.mark.parametrize("residual", [True, False])
def test_depths_of_the_ablation(depth: int, residual: bool) -> None:
    setting = ablation.Setting(None, CPU, epochs=1, timesteps=2, channels=4)
    with torch.device("meta"):
        network = ablation.build(ablation.Variant(depth, residual), setting, 10, 1, 8)
        layers = synapses(network, (1, 8, 8))
    assert sum("shortcut" not in layer.name for layer in layers) == depth


@pytest.mark.slow
def test_a_process_that_breaks_takes_nothing_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [(divmod, 17, 5), (divmod, 1, 0), (os._exit, 3)]
    found = dict(isolated(operator.call, jobs))
    assert found == {0: (3, 2), 1: Failure("ZeroDivisionError"), 2: Failure("process ended")}
    assert "ZeroDivisionError" in capfd.readouterr().err
    with pytest.raises(ValueError, match="none of 1 processes finished"):
        list(isolated(divmod, [(1, 0)]))


@pytest.mark.slow
def test_jobs_share_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2})
    found = isolated(time.sleep, [(0,), (600,)])
    assert next(found) == (0, None)
    assert not active_children()
    found.close()


@pytest.mark.parametrize("item", ["fig2", "ablation"])
def test_missing_data_is_said_once_and_before_all_work(item: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no cifar10 in"):
        call("paper", item, "--data", tmp_path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_where_none_is_needed_are_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="fig3 takes no runs"):
        call("paper", "fig3", run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig3", "--epochs", 2], "fig3 does not use --epochs"),
        (["fig6", "--images", 2], "fig6 without a run does not use --images"),
        (["table1", "--data", "x"], "table1 without a run does not use --data"),
        (["table2", "--methods", "rmp"], "table2 does not use --methods"),
        (["fig3", "--timesteps", 8], "fig3 does not use --timesteps"),
        (["theorem1", "--data", "x"], "theorem1 does not use --data"),
    ],
)
def test_options_without_use_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call("paper", *arguments)


def test_every_kind_of_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    charts = [
        Chart("lines", "x", "y", {"a": ([1, 2], [0.1, 10]), "b": ([1, 2], [1, 2])}, log=True),
        Chart("bars", "", "y", {"a": (["u", "v"], [1, 2]), "b": (["u", "v"], [3, 4])}, bars=True),
    ]
    svg, png = draw("all", "t (s)", charts, tmp_path)
    assert svg.read_text().lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert draw("none", "t (s)", [], tmp_path) == []
