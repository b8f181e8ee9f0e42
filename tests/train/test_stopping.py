"""Signals: which ones save, what a second one does, and that none is lost."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rheobase import recipes, train
from rheobase.data import Dataset, load
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, stopping
from rheobase.train.progress import Reporter
from rheobase.train.stopping import Signals, exit_code


def recipe() -> Recipe:
    """Two steps per epoch."""
    return recipes.get("demo").changed(["epochs=4", "timesteps=1", "batch_size=719", "width=0.25"])


class Sends(Reporter):
    """Sends signals to this process after the first step."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def due(self) -> bool:
        while self.numbers:
            os.kill(os.getpid(), self.numbers.pop(0))
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_each_of_them_saves(tmp_path: Path, number: signal.Signals) -> None:
    before = {n: signal.getsignal(n) for n in stopping.SIGNALS}
    with pytest.raises(train.Interrupted) as stop:
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Sends(number))
    assert stop.value.number == number
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") == 2
    assert {n: signal.getsignal(n) for n in stopping.SIGNALS} == before


def test_what_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Sends(signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(run.rows()) == 4


def test_a_second_one_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Sends(signal.SIGTERM, signal.SIGUSR1))
    assert stop.value.args == (signal.SIGUSR1,)
    assert not (tmp_path / "run").exists()  # nothing was worth keeping


def test_the_echo_of_a_launcher_is_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler signals all processes, torchrun among them, which passes it on."""
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Sends(signal.SIGTERM, signal.SIGTERM))
    signals = Signals()
    with signals.watched(), signals.kept_for_later():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.number == signal.SIGTERM
        signals.at -= stopping.ECHO
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_before_the_first_step_it_ends_the_work(tmp_path: Path) -> None:
    def interrupted(path: Path) -> Dataset:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(100)
        raise AssertionError("unreachable")

    with pytest.raises(KeyboardInterrupt) as stop:
        train.fit(recipe(), out=tmp_path / "run", device="cpu", dataset=interrupted)
    assert stop.value.args == (signal.SIGTERM,)
    assert not (tmp_path / "run").exists()


def test_before_the_first_step_it_is_not_lost(tmp_path: Path) -> None:
    """Python prints and forgets exceptions in some places, __del__ for example."""

    def forgetful(path: Path) -> Dataset:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return load("digits")

    with pytest.raises(train.Interrupted, match="stopped at step 1 of 8"):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", dataset=forgetful)


class Forgetful:
    """Gets a signal where Python prints and forgets exceptions."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


def works_meanwhile(number: int) -> None:
    Forgetful(number)
    time.sleep(100)


def test_one_that_python_forgets_comes_again(capfd: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook
    signals = Signals()
    with pytest.raises(KeyboardInterrupt) as stop, signals.watched():
        works_meanwhile(signal.SIGTERM)
    assert stop.value.args == (signal.SIGTERM,)
    assert signals.number == signal.SIGTERM
    assert sys.unraisablehook is hook
    assert capfd.readouterr().err == ""


def test_a_second_one_that_python_forgets_still_ends_the_steps_at_once() -> None:
    signals = Signals()
    with signals.watched(), signals.kept_for_later():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as stop:
            works_meanwhile(signal.SIGUSR1)
    assert stop.value.args == (signal.SIGUSR1,)
    assert signals.number == signal.SIGTERM


def test_one_that_python_forgets_is_still_the_first() -> None:
    signals = Signals()
    with signals.watched():
        Forgetful(signal.SIGTERM)
        with signals.kept_for_later():  # it is remembered, as any that comes while steps are taken
            while not signals.number:
                time.sleep(stopping.AGAIN)
            time.sleep(20 * stopping.AGAIN)  # a second one would end this
    assert signals.number == signal.SIGTERM


def test_exit_codes() -> None:
    assert exit_code(signal.SIGINT, saved=True) == 130
    assert exit_code(signal.SIGTERM, saved=True) == exit_code(signal.SIGUSR1, saved=True) == 75
    assert exit_code(signal.SIGTERM, saved=False) == 143
