"""A plan is worked off in its order, within its time, and continued by the same call."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tools import run_plan
from tools.results import ROOT
from tools.run_plan import Command, read_plan, work_off

FOREVER = "while true; do sleep 0.05; done"


def records(out: Path) -> list[tuple[str, int]]:
    rows = [json.loads(line) for line in (out / "ended.jsonl").read_text().splitlines()]
    assert all(row["seconds"] >= 0 and row["start"].endswith("+00:00") for row in rows)
    return [(row["name"], row["exit_code"]) for row in rows]


def test_a_plan_is_text(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text("# a plan\n\n  420  t2-seed.0   train --set a=b   # c\n7 x_1 true\n")
    assert read_plan(path) == [Command(420, "t2-seed.0", "train --set a=b   # c"), Command(7, "x_1", "true")]


@pytest.mark.parametrize("line", ["t2 420 train", "420 t2", "420 a/b true", "-1 a true", "5 x_1 false"])
def test_a_line_that_is_no_command(tmp_path: Path, line: str) -> None:
    path = tmp_path / "plan"
    path.write_text(f"7 x_1 true\n{line}\n")
    with pytest.raises(ValueError, match=f"plan, line 2: expected seconds, a new name and a command, got '{line}'$"):
        read_plan(path)


def test_failures_stop_nothing_and_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAME", "from outside")
    commands = [
        Command(1, "good", "echo out; echo $NAME >&2; echo good >> order"),
        Command(1, "bad", "echo bad >> order; echo first; echo why; exit 3"),
        Command(1, "silent", "false"),
        Command(101, "long", "echo long >> order"),
        Command(1, "last", "echo last >> order"),
    ]
    first, again = ([*work_off(commands, tmp_path, seconds).values()] for seconds in (100, 200))
    assert (tmp_path / "order").read_text().split() == ["good", "bad", "last", "bad", "long"]
    assert (tmp_path / "good.log").read_text() == f"$ {commands[0].shell}\nout\nfrom outside\n"
    assert (tmp_path / "bad.log").read_text().count("$ ") == 2
    assert records(tmp_path) == [
        ("good", 0),
        ("bad", 3),
        ("silent", 1),
        ("last", 0),
        ("bad", 3),
        ("silent", 1),
        ("long", 0),
    ]
    assert [words.partition("s, ")[2] or words for words in first + again] == [
        "exit code 0", "exit code 3: why", "exit code 1", "not enough time left", "exit code 0",
        "succeeded before", "exit code 3: why", "exit code 1", "exit code 0", "succeeded before",
    ]  # fmt: skip


def test_at_the_deadline_a_command_can_save(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(f"trap 'echo saved; exit 130' INT; {FOREVER}")
    commands = [Command(0, "train", f"sh {tmp_path / 'train.sh'}; exit $?"), Command(0, "next", "true")]
    assert [*work_off(commands, tmp_path, 0.5).values()][1] == "not enough time left"
    assert (tmp_path / "train.log").read_text().endswith("\nsaved\n")
    ((name, code),) = records(tmp_path)
    assert name == "train"
    assert code in (130, -signal.SIGINT)  # which one depends on the shell


def test_a_command_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan, "GRACE", 0.2)
    work_off([Command(0, "deaf", f"trap '' INT; {FOREVER}")], tmp_path, 0.2)
    assert records(tmp_path) == [("deaf", -signal.SIGKILL)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> "list[subprocess.Popen[bytes]]":
    """The processes that are started. During each start, Ctrl-C is pressed."""
    found = []
    start = subprocess.Popen.__init__

    def begin(process: "subprocess.Popen[bytes]", *arguments: Any, **options: Any) -> None:
        start(process, *arguments, **options)
        found.append(process)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "__init__", begin)
    return found


def test_a_command_ends_if_the_signal_comes_while_it_starts(
    started: "list[subprocess.Popen[bytes]]", tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_plan.run(Command(1, "train", FOREVER), tmp_path / "train.log", 60)
    assert started[0].poll() is not None


def test_a_signal_that_is_ignored_ends_nothing(started: "list[subprocess.Popen[bytes]]", tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_plan.run(Command(1, "quick", "true"), tmp_path / "quick.log", 60) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(started) == 1


def test_the_command_line_ends_what_it_runs(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan", tmp_path / "out"
    plan.write_text("1 quick echo done\n")
    words = [sys.executable, "-m", "tools.run_plan", str(plan), "--seconds", "60", "--out", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["quick", "1", "s", "0", "s,", "exit", "code", "0"]
    plan.write_text(f"1 quick false\n1 train echo $$; {FOREVER}\n")
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = out / "train.log"
    while not log.exists() or log.read_text().count("\n") < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(10) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[-1]), 0)
