"""Who works on the folder of a run, and that nobody is in the way who is not there any more."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch

from rheobase import recipes, train
from rheobase.data import load
from rheobase.recipes import Recipe
from rheobase.train.claim import LOCK, claimed
from rheobase.train.runs import Run
from rheobase.train.standing import Standing, standing

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rheobase.train"])


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=1", "timesteps=1", "batch_size=719", "width=0.25", *settings])


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"cannot write to .*/run/\.lock: Too many levels of symbolic links; choose"):
        train.fit(recipe(), out=tmp_path / "run", device="cpu")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_run_that_was_removed_meanwhile_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    real: Callable[..., None] = fcntl.lockf

    def late(handle: int, how: int) -> None:
        real(handle, how)
        (tmp_path / LOCK).unlink()  # by who held it before

    monkeypatch.setattr(fcntl, "lockf", late)
    with pytest.raises(ValueError, match="is being trained by another process"), claimed(tmp_path):
        pytest.fail("unreachable")


def compete(seed: int, folder: Path, ready: Barrier) -> None:
    torch.set_num_threads(1)
    ready.wait()
    try:
        train.fit(recipe(f"seed={seed}", "epochs=3"), out=folder / "run", device="cpu")
    except ValueError as error:
        (folder / f"error-{seed}").write_text(str(error))
    else:
        (folder / f"won-{seed}").touch()


def test_of_two_that_begin_at_once_one_has_the_folder(tmp_path: Path) -> None:
    ready = processes.Barrier(2)
    members = [processes.Process(target=compete, args=(seed, tmp_path, ready)) for seed in (3, 4)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    (winner,) = tmp_path.glob("won-*")
    (loser,) = tmp_path.glob("error-*")
    assert "is being trained by another process" in loser.read_text() or "is not an empty folder" in loser.read_text()
    settings = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert f"won-{settings['seed']}" == winner.name
    assert len(Run(tmp_path / "run").rows()) == 3


def create_until(folder: Path, last: int) -> None:
    """Begin a run, and be killed at the `last` operation on a file in its folder."""
    done = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if event in ("open", "os.mkdir", "os.rename") and str(arguments[0]).startswith(str(folder)):
            done += 1
            if done == last:
                os._exit(9)

    info = load("digits").info
    sys.addaudithook(count)
    with claimed(folder):
        Run.create(folder, recipe(), info, torch.device("cpu"), keep_best=True)


def test_a_kill_at_any_moment_of_the_beginning_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    last, found = 0, set[Standing]()
    while True:
        last += 1
        out = tmp_path / str(last)
        member = processes.Process(target=create_until, args=(out, last))
        member.start()
        member.join()
        if not member.exitcode:
            break
        assert member.exitcode == 9
        found.add(standing(out, recipe()))
        if standing(out, recipe()) is Standing.NEW:
            with claimed(out):
                Run.create(out, recipe(), load("digits").info, torch.device("cpu"))
        assert standing(out, recipe()) is Standing.UNFINISHED
        assert Run(out).beginning
    assert last > 10
    assert found == {Standing.NEW}, "recipe.json is the last file"


def test_a_kill_while_a_failed_run_is_removed_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe(), load("digits").info, torch.device("cpu"))

    class Killed(BaseException): ...

    def killed(event: str, arguments: tuple[object, ...]) -> None:
        if hook and event == "os.remove" and str(arguments[0]).endswith("data.json"):
            raise Killed

    hook = True
    sys.addaudithook(killed)
    with pytest.raises(Killed):
        run.discard_if_empty()
    hook = False
    assert standing(run.folder, recipe()) is Standing.NEW
    train.fit(recipe(), out=run.folder, device="cpu")
