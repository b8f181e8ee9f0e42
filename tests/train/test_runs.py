"""The folder of a run: who may write to it, and what it says."""

import json
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Barrier

import pytest
import torch

from rheobase import recipes, train
from rheobase.data import load
from rheobase.recipes import Recipe
from rheobase.train.runs import Run


def recipe() -> Recipe:
    return recipes.get("demo").changed(["epochs=1", "timesteps=1"])


def hold(folder: Path, held: Event) -> None:
    with Run(folder).claimed():
        held.set()
        time.sleep(100)


def test_one_process_at_a_time_trains_a_run(tmp_path: Path) -> None:
    train.fit(recipe(), out=tmp_path, device="cpu")
    processes = multiprocessing.get_context("forkserver")
    held = processes.Event()
    other = processes.Process(target=hold, args=(tmp_path, held))
    other.start()
    assert held.wait(100)
    with pytest.raises(ValueError, match="is being trained by another process; wait for its end"):
        train.fit(recipe(), out=tmp_path, resume=True, device="cpu")
    other.kill()
    other.join()
    train.fit(recipe(), out=tmp_path, resume=True, device="cpu")


@pytest.mark.parametrize(("name", "simulated"), [("digits_dvs", True), ("demo", False)])
def test_runs_on_simulated_recordings_say_so(name: str, simulated: bool, tmp_path: Path) -> None:
    chosen = recipes.get(name)
    run = Run.create(tmp_path / "run", chosen, load(chosen.data).info, torch.device("cpu"))
    assert run.read("data.json")["simulated"] is simulated


@pytest.mark.parametrize("name", ["digits_dvs", "demo"])
def test_old_records_are_good_enough_for_their_data(name: str, tmp_path: Path) -> None:
    """They had no fingerprint, no numbers of images, and did not tell recordings from images."""
    chosen = recipes.get(name)
    run = Run.create(tmp_path / "run", chosen, load(chosen.data).info, torch.device("cpu"))
    content = run.read("data.json")
    old = {key: content[key] for key in ("name", "classes", "channels", "size", "mean", "std")}
    (run.folder / "data.json").write_text(json.dumps(old))
    found = run.open_data(None)
    assert found.info == load(chosen.data).info
    assert len(found.test) == 359


def test_a_record_is_strict_json_and_complete(tmp_path: Path) -> None:
    dataset = load("digits")
    run = Run.create(tmp_path / "run", recipe(), dataset.info, torch.device("cpu"))
    assert run.data == dataset.info
    assert json.loads((run.folder / "data.json").read_text())["images"] == 1438


def test_runs_that_begin_together_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begin, dataset = Barrier(4), load("digits")

    def create(_: int) -> Path:
        begin.wait()
        return Run.create(None, recipe(), dataset.info, torch.device("cpu")).folder

    with ThreadPoolExecutor(4) as pool:
        assert {f.name for f in pool.map(create, range(4))} == {f"demo-{i}" for i in range(1, 5)}


def test_a_norm_that_overflowed_is_null(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for epoch, norm in ((1, float("inf")), (2, 1.5), (3, 2.5)):
        run.append({"epoch": epoch, "gradient_norm": norm})
    run.keep_rows(2)
    assert run.metrics.read_text() == '{"epoch": 1, "gradient_norm": null}\n{"epoch": 2, "gradient_norm": 1.5}\n'
