"""Folders for new runs: each has its own, and only the rest of a start that was killed is removed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from rheobase import recipes
from rheobase.data import load
from rheobase.recipes import Recipe
from rheobase.train.folders import BEGINNING, own_folder
from rheobase.train.runs import Run
from rheobase.train.standing import Standing, standing


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=1", "timesteps=1", *settings])


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_runs_that_begin_together_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begin = Barrier(4)

    def create(_: int) -> Path:
        begin.wait()
        return own_folder("demo")

    with ThreadPoolExecutor(4) as pool:
        assert {f.name for f in pool.map(create, range(4))} == {f"demo-{i}" for i in range(1, 5)}


def test_what_a_killed_beginning_left_is_cleared(tmp_path: Path) -> None:
    run, info = tmp_path / "run", load("digits").info
    Run.create(run, recipe("seed=1"), info, torch.device("cpu"))
    (run / "recipe.json").unlink()  # the last file that is written
    (run / "plugins").mkdir()
    (run / "plugins.json").write_text("[")
    assert standing(run, recipe()) is Standing.NEW
    Run.create(run, recipe(), info, torch.device("cpu"))
    assert {p.name for p in run.iterdir()} == {"environment.json", "data.json", "recipe.json", BEGINNING}
    assert standing(run, recipe()) is Standing.UNFINISHED


@pytest.mark.parametrize("name", ["data.json", "environment.json", "thesis.tex"])
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    assert standing(tmp_path, recipe()) is Standing.NEW
    with pytest.raises(ValueError, match="is not an empty folder"):
        Run.create(tmp_path, recipe(), load("digits").info, torch.device("cpu"))
    assert content(tmp_path) == {name: b"mine"}


def test_a_run_in_its_beginning_is_not_cleared(tmp_path: Path) -> None:
    info = load("digits").info
    Run.create(tmp_path / "run", recipe(), info, torch.device("cpu"))
    before = content(tmp_path)
    with pytest.raises(ValueError, match="is not an empty folder"):
        Run.create(tmp_path / "run", recipe(), info, torch.device("cpu"))
    assert content(tmp_path) == before
