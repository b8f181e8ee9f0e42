"""How far a run is, and that nothing is lost while finding out."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rheobase import recipes, train
from rheobase.recipes import Recipe
from rheobase.train.folders import BEGINNING
from rheobase.train.standing import Standing, folder_of_several, standing
from tests.train.short_runs import StopAt, assert_identical


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=2", "batch_size=411", "timesteps=1", *settings])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train.fit(recipe(), out=folder, device="cpu", save_every=0)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_finished_run(finished: Path) -> None:
    before = content(finished)
    assert standing(finished, recipe()) is Standing.FINISHED
    assert content(finished) == before


def test_nothing_there_is_new(tmp_path: Path) -> None:
    assert standing(tmp_path / "none", recipe()) is Standing.NEW
    assert standing(tmp_path, recipe()) is Standing.NEW
    assert not (tmp_path / "none").exists()


def test_a_stopped_run_is_unfinished(tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=StopAt(2))
    assert standing(tmp_path / "run", recipe()) is Standing.UNFINISHED


def test_a_run_whose_last_checkpoint_is_lost_goes_on(finished: Path, tmp_path: Path) -> None:
    for loss in ("damaged", "gone"):
        run = shutil.copytree(finished, tmp_path / loss)
        newest = max((run / "checkpoints").iterdir())
        if loss == "gone":  # killed after the metrics of the last epoch
            shutil.rmtree(newest)
            assert standing(run, recipe()) is Standing.UNFINISHED
        else:
            (newest / "weights.safetensors").write_bytes(b"damaged")
            with pytest.warns(UserWarning, match="is damaged"):
                assert standing(run, recipe()) is Standing.UNFINISHED


def test_killed_before_the_first_checkpoint(finished: Path, tmp_path: Path) -> None:
    """All epochs may be in the metrics, and a kill came before the weights were written."""
    run = shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    (run / BEGINNING).touch()
    assert standing(run, recipe()) is Standing.UNFINISHED
    train.fit(recipe(), out=run, resume=True, device="cpu")
    assert_identical(run, finished)
    assert standing(run, recipe()) is Standing.FINISHED
    assert not (run / BEGINNING).exists()


def test_results_without_weights_are_not_overwritten(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(ValueError, match="holds a finished run without weights; choose another folder"):
        standing(run, recipe())


def test_another_recipe_is_named_by_its_settings(finished: Path) -> None:
    message = (
        "holds a run of another recipe: lr is 0.1 there and 0.2 here, flip is false there and true here; continue with"
    )
    with pytest.raises(ValueError, match=message):
        standing(finished, recipe("lr=0.2", "flip=true"))
    many = ["lr=0.2", "decay=0.5", "v_th=1", "flip=true", "padding=0", "seed=5"]
    with pytest.raises(ValueError, match=r"decay is 0\.25 .*, and 2 more differ; continue with"):
        standing(finished, recipe(*many))


def test_a_folder_of_several_runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kept in (True, False, False):  # the number is taken only if something came of it
        with folder_of_several(None, "demo", go_on=False, alone=True) as folder:
            assert folder == Path("runs", "demo-1" if kept else "demo-2")
            if kept:
                (folder / "seed-0").mkdir()
    with folder_of_several(Path("runs/demo-1"), "demo", go_on=True, alone=False) as folder:
        assert folder == Path("runs/demo-1")
    Path("file").touch()
    for out, go_on, message in (
        (Path("runs/demo-1"), False, "runs/demo-1 is not an empty folder; choose another, or add --continue to resume"),
        (finished, True, "is a single run, not a folder for several runs; choose another"),
        (Path("file"), True, "file is a file, not a folder"),
        (None, False, "a run of several processes needs a folder that all of them see; add --out"),
    ):
        with pytest.raises(ValueError, match=message), folder_of_several(out, "demo", go_on=go_on, alone=False):
            pytest.fail("unreachable")
