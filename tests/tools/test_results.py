"""What is kept of runs, and the tables of it: the numbers are those of the files."""

import json
import shutil
from pathlib import Path

import pytest

from rheobase import recipes, train
from rheobase.recipes import Recipe
from rheobase.train.record import write_result
from rheobase.train.runs import Run
from tools import fork, keep
from tools.results import kept, spread, tables


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=3", "batch_size=512", "timesteps=2", "evaluate_every=2", *settings])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train.fit(recipe(), out=tmp_path_factory.mktemp("runs") / "run", device="cpu").folder


def test_a_run_is_kept_without_weights_and_shown(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "cifar10" / "small"
    keep.keep(run, out)
    found = keep.against_timesteps(run, None, "cpu")
    write_result(out / "timesteps.json", {"timesteps": found})
    assert not list(out.rglob("*.safetensors"))
    assert Run(out).rows() == Run(run).rows()
    for file in out.glob("*.json*"):
        assert str(Path.home()) not in file.read_text()
        assert '"/' not in file.read_text(), "a place on this machine"

    accuracies, timesteps = tables(tmp_path)
    *_, row = accuracies.splitlines()
    last = Run(run).rows()[-1]
    name, steps, paper, after, best, epochs, seconds, _, device = (cell.strip() for cell in row.split("|")[1:-1])
    assert (name, steps, paper, epochs) == ("[`demo`](../results/cifar10/small)", "2", "", "3 of 3")
    assert after == f"{100 * last['test_accuracy']:.2f}"
    assert float(best) >= float(after)
    assert seconds == f"{last['elapsed']:.0f}"
    assert device == json.loads((run / "environment.json").read_text())["record"]["device"]
    cells = [cell.strip() for cell in timesteps.splitlines()[-1].split("|")[1:-1]]
    assert cells[:2] == ["`demo`", "2"]
    assert cells[3].startswith(f"{after} (")
    assert len(cells) == 2 + len(keep.TIMESTEPS)


def test_several_seeds_are_one_row(run: Path, tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.5, 0.6)):
        out = tmp_path / "cifar10" / "small" / f"seed-{seed}"
        keep.keep(run, out)
        rows = Run(out).rows()
        rows[-1] |= {"test_accuracy": accuracy, "elapsed": 10.0 + 4 * seed}
        (out / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (group,) = kept(tmp_path / "cifar10")
    assert (group.folder, len(group.runs)) == (tmp_path / "cifar10" / "small", 2)
    assert group.last == "55.00 ± 7.07 (2 seeds)"
    assert (group.seconds, group.seconds_to_target) == ("12", "")
    (accuracies,) = tables(tmp_path)
    assert "| [`demo`](../results/cifar10/small) | 2 |  | 55.00 ± 7.07 (2 seeds) |" in accuracies


def test_one_run_has_no_deviation() -> None:
    assert spread([93.164]) == "93.16"


def test_results_that_are_not_there_are_not_shown(tmp_path: Path) -> None:
    assert tables(tmp_path) == []
    with pytest.raises(ValueError, match="has no finished epoch to keep"):
        keep.keep(tmp_path, tmp_path / "kept")


def test_a_run_without_a_record_is_not_kept(run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(run, old, ignore=shutil.ignore_patterns("checkpoints"))
    (old / "environment.json").write_text('{"device": "CPU"}')
    with pytest.raises(ValueError, match=r"environment\.json has no record of how the run was made"):
        keep.keep(old, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_fork_is_the_other_recipe_as_far_as_they_agree(tmp_path: Path) -> None:
    other = recipe("timesteps=3", "short_timesteps=2", "short_epochs=2")
    train.fit(other, out=tmp_path / "other", device="cpu")

    class Stop(train.Reporter):
        def epoch(self, row: dict[str, float]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Stop(), save_every=0)
    fork.fork(tmp_path / "run", other, tmp_path / "fork")
    rows = train.fit(other, out=tmp_path / "fork", resume=True, device="cpu").rows()
    assert [row["timesteps"] for row in rows] == [2, 2, 3]
    assert [row["loss"] for row in rows] == [row["loss"] for row in Run(tmp_path / "other").rows()]
    environment = json.loads((tmp_path / "fork" / "environment.json").read_text())
    assert environment["forked"]["step"] == rows[0]["step"]
    assert environment["record"]["seed"] == recipe().seed


def test_a_fork_has_the_settings_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["epochs=1", "batch_size=512", "seed=3"]
    run = train.fit(recipes.get("demo").changed(settings), out=tmp_path / "run", device="cpu").folder
    words = ["fork", str(run), "demo", str(tmp_path / "fork"), *(w for s in settings for w in ("--set", s))]
    monkeypatch.setattr("sys.argv", words)
    fork.main()
    assert Run(tmp_path / "fork").recipe == Run(run).recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lr=0.3"], "differs from demo in more than timesteps"),
        (["timesteps=4"], "has other timesteps than demo in the first 3 epochs"),
    ],
)
def test_a_fork_that_would_not_be_the_other_recipe(
    run: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fork.fork(run, recipe(*settings), tmp_path / "fork")
