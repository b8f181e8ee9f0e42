"""The best epoch beside the last: which one it is, and that it is a run of its own."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from rheobase import plugins, recipes, train
from rheobase.data import Dataset, Split
from rheobase.data.sets.digits import digits
from rheobase.recipes import Recipe
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train.best import Best
from rheobase.train.runs import Run, load_network
from tests.train.short_runs import StopAt, assert_identical


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=5", "batch_size=128", "timesteps=1", "average=0", *settings])


@pytest.fixture(scope="module", autouse=True)
def _wrong_labels() -> Iterator[None]:
    """The labels of all test images are wrong. So the more is learnt, the lower the test accuracy."""

    @wraps(digits)
    def wrong(path: Path | None = None) -> Dataset:
        data = digits()
        return replace(data, test=Split(data.test.images, (data.test.labels + 1) % 10))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plugins.dataset.parts, "digits", wrong)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train.fit(recipe(), out=tmp_path_factory.mktemp("runs") / "run", device="cpu", keep_best=True)


def best_row(run: Run) -> dict[str, Any]:
    return max(run.rows(), key=lambda row: row.get("test_accuracy", -1.0))


def test_it_is_the_epoch_of_the_highest_test_accuracy(run: Run) -> None:
    row = best_row(run)
    assert row["epoch"] < 5, "the last epoch is the best: nothing is seen here"
    found = evaluate_run(run.best, device="cpu")
    assert (found.accuracy, found.loss) == (row["test_accuracy"], row["test_loss"])
    best = Run(run.best)
    assert best.trained().step == row["step"]
    assert best.recipe == run.recipe
    assert best.data == run.data
    assert best.rows() == run.rows()[: row["epoch"]]
    assert best.read("environment.json") == run.read("environment.json")
    assert [path.name for path in best.checkpoints.iterdir()] == [f"{row['step']:08d}"]


def test_it_is_the_moving_average_that_is_measured_and_kept(tmp_path: Path) -> None:
    run = train.fit(recipe("epochs=2", "average=0.9"), out=tmp_path / "run", device="cpu", keep_best=True)
    found, row = evaluate_run(run.best, device="cpu"), best_row(run)
    assert (found.accuracy, found.loss) == (row["test_accuracy"], row["test_loss"])
    saved = run.trained().tensors
    assert not torch.equal(saved["weights"]["stem.weight"], saved["training"]["network.stem.weight"])


def test_the_run_itself_is_what_it_would_be_without(run: Run, tmp_path: Path) -> None:
    plain = train.fit(recipe(), out=tmp_path / "plain", device="cpu")
    own, other = run.trained().tensors, plain.trained().tensors
    for group in ("weights", "training"):
        assert all(torch.equal(own[group][name], t) for name, t in other[group].items())
    assert not plain.best.exists()


@pytest.mark.parametrize("step", [8, 32])
def test_a_resumed_run_has_the_same(run: Run, tmp_path: Path, step: int) -> None:
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=out, device="cpu", keep_best=True, reporter=StopAt(step))
    train.fit(recipe(), out=out, device="cpu", resume=True)
    assert_identical(out, run.folder)
    assert_identical(out / "best", run.best)


def test_what_a_kill_left_out_is_made_up_for(run: Run, tmp_path: Path) -> None:
    """Between the last checkpoint and the folder of the best."""
    out = shutil.copytree(run.folder, tmp_path / "run")
    shutil.rmtree(out / "best")
    (out / "best").mkdir()
    train.fit(recipe(), out=out, device="cpu", resume=True)
    assert_identical(out / "best", run.best)


def test_a_damaged_checkpoint_leaves_no_best_of_epochs_that_come_again(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=out, device="cpu", keep_best=True, reporter=StopAt(52), save_every=0)
    later = shutil.copytree(run.trained().path, out / "best" / "checkpoints" / "00000099")
    train.fit(recipe(), out=out, device="cpu", resume=True)
    assert not later.exists()
    assert_identical(out / "best", run.best)


def test_it_knows_where_the_data_of_its_run_are(run: Run, tmp_path: Path) -> None:
    assert Run(run.best).data_path(None) is None
    shutil.copytree(run.folder, tmp_path / "run")
    Run(tmp_path / "run").remember(data=tmp_path)
    assert Run(tmp_path / "run/best").data_path(None) == tmp_path


def test_it_keeps_the_record_of_the_data_that_it_was_trained_on(run: Run, tmp_path: Path) -> None:
    own = Run(shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("best")))
    own.best.mkdir()
    network, old, new = load_network(own), own.data, replace(own.data, fingerprint="of others")
    best = Best(own, None)
    best.see({"epoch": 2, "step": 6, "test_accuracy": 0.25}, network)
    own.change_data(new, 7)
    best.write(best.epoch)
    assert Run(own.best).data == old
    best.see({"epoch": 3, "step": 9, "test_accuracy": 0.5}, network)
    best.write(best.epoch)
    assert Run(own.best).data == new
    assert Run(own.best).read("data-until-00000007.json") == old.as_dict()
    again = Best(own, None)  # a resumed run writes it anew
    again.epoch = best.epoch._replace(row=best.epoch.row | {"epoch": 1, "step": 7})
    again.write(again.epoch)
    assert Run(own.best).data == old
