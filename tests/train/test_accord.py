"""Processes that stop and save after the same step, whichever of them is told, and go on in any number."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from rheobase import recipes, train
from rheobase.data import load
from rheobase.data.feed import Feed
from rheobase.recipes import Recipe
from rheobase.train import accord, checkpoint, distributed
from rheobase.train.accord import Accord, Decision
from rheobase.train.distributed import ALONE, TeamBroken
from rheobase.train.progress import Reporter
from rheobase.train.stopping import Signals
from tests.train.test_distributed import assert_runs_agree, free_port, join, processes, run_team

CPU = torch.device("cpu")


def recipe(*settings: str) -> Recipe:
    """Three full batches of 411 and one of 205."""
    return recipes.get("demo").changed(
        ["precision=fp64", "epochs=2", "batch_size=411", "timesteps=1", "width=0.25", "average=0.5", *settings]
    )


def test_alone_it_is_ones_own_decision() -> None:
    signals = Signals()
    own = Accord(ALONE, signals)
    assert own.after_step(save=False) == Decision()
    assert own.after_step(save=True) == Decision(0, True)
    signals.number = 15
    assert own.after_step(save=False) == own.settle() == Decision(15, False)


def decide(rank: int, world: int, port: int, folder: Path) -> None:
    """The second process gets a signal at its step 20; the first one wishes to save at step 5, until it may."""
    join(rank, world, port)
    accord.SECONDS = 0.02
    with distributed.team(CPU) as (team, _):
        signals = Signals()
        rounds, found, saved = Accord(team, signals), [], False
        for step in range(1, 200):
            time.sleep(0.002 * (1 + rank))  # they are not at the same step at the same time
            if rank == 1 and step == 20:
                signals.number = 10
            decision = rounds.after_step(save=rank == 0 and step >= 5 and not saved)
            if decision != Decision():
                found.append((step, decision))
            saved = saved or decision.save
            if decision.signal:
                break
        (folder / str(rank)).write_text(repr(found))


def test_all_decide_the_same_after_the_same_step(tmp_path: Path) -> None:
    run_team(decide, 2, tmp_path)
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text()
    (_, save), (stop, end) = eval((tmp_path / "0").read_text(), {"Decision": Decision})
    assert save == Decision(0, True)
    assert end == Decision(10, False)
    assert stop >= 20


def fit(rank: int, world: int, port: int, folder: Path, number: int, *settings: str, resume: bool = False) -> None:
    """A run of a team, whose last process gets the signal `number` in its third step; 0 for none."""
    join(rank, world, port)
    taken = 0

    def after_step(*_: Any) -> None:
        nonlocal taken
        taken += 1
        if number and taken == 3 and rank == world - 1:
            os.kill(os.getpid(), number)

    register_optimizer_step_post_hook(after_step)
    options: dict[str, Any] = {"resume": resume, "save_every": 1e-9 if number == signal.SIGKILL else 30}
    if number == signal.SIGSTOP:
        options["patience"] = 5
    try:
        train.fit(recipe(*settings), out=folder, device="cpu", **options)
    except train.Interrupted as stop:
        sys.exit(stop.number)
    except (TeamBroken, ValueError) as error:
        (folder.parent / f"{rank}.txt").write_text(f"{getattr(error, 'quiet', False)} {error}")
        sys.exit(1)


def outcome(world: int, folder: Path, number: int, *settings: str) -> list[int | None]:
    """Exit codes of a team; who is stopped for good is killed when the first process has ended."""
    arguments = (world, free_port(), folder, number, *settings)
    members = [processes.Process(target=fit, args=(rank, *arguments)) for rank in range(world)]
    for member in members:
        member.start()
    for member in members:
        member.join()
        if number == signal.SIGSTOP:
            members[-1].kill()
    return [member.exitcode for member in members]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs") / "alone"
    train.fit(recipe(), out=folder, device="cpu")
    torch.set_num_threads(threads)
    return folder


class Notes(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, sentence: str) -> None:
        self.said.append(sentence)


def test_one_process_is_told_and_all_save_and_one_goes_on(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert outcome(2, run, signal.SIGTERM) == [signal.SIGTERM] * 2
    saved = checkpoint.latest(run / "checkpoints")
    assert saved is not None
    assert 3 <= saved.step < 8
    notes = Notes()
    train.fit(recipe(), out=run, resume=True, device="cpu", reporter=notes)
    expected = "started with 2 and continues with 1 processes: same batches and schedule, other rounding"
    assert notes.said == [expected]
    assert_runs_agree(alone, run)


def test_a_killed_process_ends_all_and_the_checkpoint_inside_the_epoch_is_good(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert outcome(2, run, signal.SIGKILL) == [1, -signal.SIGKILL]
    assert (
        (tmp_path / "0.txt").read_text().startswith("False another process of this run has ended; --continue resumes")
    )
    saved = checkpoint.latest(run / "checkpoints")
    assert saved is not None
    assert 0 < saved.step < 4
    assert saved.tensors["training"]["totals"][3] == 411 * saved.step  # of both processes
    run_team(partial(fit, resume=True), 2, run, 0)
    assert_runs_agree(alone, run)


def test_a_process_that_hangs_ends_the_others_after_their_patience(tmp_path: Path) -> None:
    assert outcome(2, tmp_path / "run", signal.SIGSTOP) == [1, -signal.SIGKILL]
    expected = (
        "False a process of this run did not answer for 5 s (--patience); --continue resumes from the last checkpoint"
    )
    assert (tmp_path / "0.txt").read_text() == expected


@pytest.mark.parametrize(
    ("precision", "said"),
    [("fp32", "the loss became nan by step "), ("fp64", "weights are no longer finite after step ")],
)
def test_only_the_first_process_says_what_is_not_finite(tmp_path: Path, precision: str, said: str) -> None:
    """Too large numbers spoil the loss, in float64 only the weights after the last step: in a thread of the first."""
    settings = ("lr=1e38", "timesteps=1", f"precision={precision}")
    assert outcome(2, tmp_path / "run", 0, *settings) == [1, 1]
    assert (tmp_path / "0.txt").read_text().startswith(f"False {said}")
    assert (tmp_path / "1.txt").read_text().startswith("True another process of this run has ended")


def test_the_last_batch_stays_what_it_was() -> None:
    """1438 = 4 * 359 + 2: one process uses the last two images, two by themselves would not."""
    dataset, chosen = load("digits"), recipe("batch_size=359")
    one, two, three = (Feed(dataset, chosen, CPU, torch.float64, 0, world) for world in (1, 2, 3))
    assert (one.steps, two.steps, three.steps) == (5, 4, 4)
    two.keep_steps(5, "RUN")
    assert [len(labels) for _, labels, _ in two.training(0)] == [179, 179, 179, 179, 1]
    one.keep_steps(4, "RUN")
    assert [len(labels) for _, labels, _ in one.training(0)] == [359] * 4
    with pytest.raises(
        ValueError, match=r"^RUN ends its epochs with a batch of 2, too few for 3 processes; resume it "
    ):
        three.keep_steps(5, "RUN")
    with pytest.raises(ValueError, match=r"^RUN took 6 steps per epoch, here it would take 4; resume it with the data"):
        three.keep_steps(6, "RUN")
