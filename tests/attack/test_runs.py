"""The attack on runs sees what it is there to see, and a run that is killed by it goes on as if it had not been."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attack import command, runs
from attack.command import Ended
from attack.runs import Case, Place, Undisturbed, judged
from tests.runs import made


@pytest.mark.parametrize(
    ("code", "errors", "sent", "outcome"),
    [
        (0, "", (), "finished"),
        (0, "warning: other data\n", (), "finished"),
        (1, "error: cannot write to run: No space left on device\n", (), "refused"),
        (-9, "", (signal.SIGKILL,), "killed"),
        (-15, "", (signal.SIGTERM,), "stopped"),
        (75, "stopped at step 1 of 8; continue with: rheobase train --resume run\n", (signal.SIGTERM,), "saved"),
        (143, "stopped at once: nothing was saved\n", (signal.SIGTERM,), "stopped"),
        (130, "", (signal.SIGINT,), "stopped"),
        (130, "", (signal.SIGTERM,), "crash"),
        (-9, "", (), "crash"),
        (-11, "", (signal.SIGKILL,), "crash"),
        (-11, "", runs.CRASHES, "died"),
        (75, "stopped at step 1 of 8; continue with: rheobase train --resume run\n", (), "crash"),
        (1, "", (signal.SIGTERM,), "crash"),
        (0, "something\nelse\n", (), "several lines"),
        (1, "error: one\nerror: two\n", (), "several lines"),
        (1, "Traceback (most recent call last):\nKeyError: 1\n", (), "traceback"),
    ],
)
def test_ends_are_told_apart(code: int, errors: str, sent: tuple[int, ...], outcome: str) -> None:
    assert judged(Ended(code, errors, 1.0), sent).partition(":")[0] == outcome


def test_of_a_team_one_speaks() -> None:
    assert judged(Ended(75, "", 1.0), (signal.SIGTERM,), team=True) == "saved"
    assert judged(Ended(1, "[W1116 socket.cpp:1028] it is gone\n", 1.0), team=True) == "refused"
    assert judged(None).partition(":")[0] == "hang"


def test_points_are_spread_over_all_operations(tmp_path: Path) -> None:
    nothing = Undisturbed(tmp_path, 1.0)
    place = Place(tmp_path, nothing, nothing, tmp_path, {"writing": 7})
    few, many = ([Case("x", i, of, place, seed=0).point("writing") for i in range(of)] for of in (3, 9))
    assert few == [1, 3, 5]
    assert sorted({*many}) == [1, 2, 3, 4, 5, 6, 7]


def test_runs_that_differ_are_told_apart(tmp_path: Path) -> None:
    for name, accuracies in (("a", [0.1, 0.2]), ("b", [0.1, 0.2]), ("c", [0.1, 0.3])):
        made(tmp_path / name, accuracies=accuracies)
    assert runs._difference(tmp_path / "a", tmp_path / "b") == ""
    assert runs._difference(tmp_path / "a", tmp_path / "c") == "metrics of ."


PROGRAM = """
import json, sys
from pathlib import Path
from attack import command, runs
from attack.command import Job
command.warm_up()
root = Path(sys.argv[1])
whole, killed, full = (root / name / "run" for name in ("whole", "killed", "full"))
for run in (whole, killed, full):
    run.parent.mkdir()
found = [Job(whole).ended()]
found.append(Job(killed, prepare=command.at_operation(killed, 70, command.kill)).ended())
found.append(Job(full, prepare=command.no_space(full, 5)).ended())
steps = len([*(killed / "checkpoints").glob("[0-9]*")])
found.append(Job(killed).ended())
ends = [runs.judged(end, runs.KILLS) for (end,) in found]
differences = [runs._difference(whole, other) for other in (killed, whole / "best")]
print(json.dumps([ends, steps, differences]))
"""


def test_a_run_is_killed_at_an_operation_and_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=command.FEW.parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    ends, steps, (same, other) = json.loads(done.stdout)
    assert ends == ["finished", "killed", "refused", "finished"]
    assert steps  # the kill came after a checkpoint, and before the end
    assert same == ""
    assert other != ""
