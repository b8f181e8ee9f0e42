"""Operations of a network of events: report, analyze, verify, Table 6 and the simulator count the same."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rheobase import recipes
from rheobase.analysis.operations import IMAGES, operations
from rheobase.cli import app
from rheobase.data import load
from rheobase.data.feed import first_images
from rheobase.deploy import nirfile
from rheobase.deploy.simulate import simulate
from rheobase.paper.inference import table6
from rheobase.report.page import _count
from rheobase.tasks.open import folded
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.deploy.networks import randomise

pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "events"
    run = Run.create(folder, recipes.get("digits_dvs"), load("digits-dvs").info, torch.device("cpu"))
    checkpoint.save(run.checkpoints, 1, {"weights": randomise(run.network(), 16).float().state_dict()}, {})
    return run


def call(*words: object) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.output


def test_everybody_counts_the_same(run: Run) -> None:
    x, _ = first_images(run.open_data(None), run.recipe, IMAGES, torch.float64)
    counted = operations(folded(run)[1], x)
    additions, multiplications = counted.count()
    assert counted.layers[0].additions > 0  # single events
    assert 0 < multiplications < 0.2 * counted.without_spikes  # zeros of the frames cost nothing
    call("fold", run.folder)
    printed = f"{additions:.3g} additions and {multiplications:.3g} multiplications per image"
    assert printed in call("analyze", run.folder, "--images", IMAGES)
    assert printed in call("verify", run.folder / "folded.safetensors", run.folder)
    assert table6(run=run.folder).data["counts"]["inputs that are not zero"] == [additions, multiplications]
    call("report", run.folder, "--images", IMAGES)
    page = (run.folder / "report.html").read_text()
    shown = rf"<td>all</td><td></td><td>{_count(additions)}</td><td>{_count(multiplications)}</td>"
    assert re.search(re.escape(shown).replace(r"\ ", " "), page)


def test_the_simulator_does_what_is_counted(run: Run, tmp_path: Path) -> None:
    call("export", run.folder, "--to", "nir", "--out", tmp_path / "net.nir")
    x, _ = first_images(run.open_data(None), run.recipe, 1, torch.float64)
    counted = operations(folded(run)[1], x).layers
    graph = nirfile.read(tmp_path / "net.nir")
    done = simulate(graph, x[:, 0].numpy()).operations
    for layer in counted:
        assert done[layer.name].multiplications == layer.multiplications, layer.name
        assert done[layer.name].additions == layer.additions + layer.bias, layer.name
