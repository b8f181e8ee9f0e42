"""A training that takes long on a CPU is told of a smaller network; others are not held up."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from rheobase import recipes
from rheobase.data import expected
from rheobase.train import advice, plan
from rheobase.train.progress import Lines
from rheobase.train.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    info = replace(expected("folder", size=32), images=500)
    return Run.create(tmp_path / "run", recipes.get("images_resnet19"), info, torch.device("cpu"))


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole training takes 8 hours, with the small network a quarter of one."""

    def times(recipe, data, device, seconds=1.0):  # type: ignore[no-untyped-def]
        return plan.Times(1.0, 1.0, 900.0 if recipe.network == advice.SMALLER else 8 * 3600.0)

    monkeypatch.setattr(plan, "times", times)


def test_more_than_an_hour_is_said_once_before_it_begins(run: Run, hours: None) -> None:
    shown = StringIO()
    lines = Lines(Console(file=shown, width=200), advice.on_cpu)
    lines.start(run.folder, 60, 4, 0)
    assert shown.getvalue() == (
        "this CPU will need about 8 h; about 15 min with a small network: --set network=resnet8\n"
    )
    assert advice.on_cpu(run.folder, 0.1) is None  # most of it is done
    lines.start(run.folder, 60, 4, 240)  # all of it
    assert shown.getvalue().count("\n") == 1


def test_the_smallest_network_has_no_smaller_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "SMALLER", "resnet19")
    monkeypatch.setattr(plan, "times", lambda *a, **k: plan.Times(1.0, 1.0, 7200.0))
    assert advice.on_cpu(run.folder, 1.0) == (
        "this CPU will need about 2 h; fewer epochs or timesteps, smaller images or a GPU make it shorter"
    )


def test_the_small_network_takes_the_data_of_every_recipe_of_images() -> None:
    for name in ("images_resnet19", "cifar10_resnet19_t2"):
        chosen = replace(recipes.get(name), network=advice.SMALLER, batch_size=2)
        info = expected(chosen.data, size=chosen.image_size)
        assert plan.step_seconds(chosen, info, torch.device("cpu"), seconds=0.0) > 0
