"""Kill, stop and starve runs. Each must end in one sentence at most, continue with the same command, and then equal an
undisturbed run bit for bit.

A case follows from its kind, its number and the seed. Times are random, but file operations are counted.
"""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from attack import command
from attack.command import Ended, Job
from attack.report import Report
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from rheobase.train.stopping import SAVED, SIGNALS

GOOD = ("died", "finished", "killed", "refused", "saved", "stopped")
KEPT = Path("runs/attack")
TIMINGS = ("seconds", "images_per_second", "elapsed")
KILLS = (signal.SIGKILL, signal.SIGXFSZ)
CRASHES = (signal.SIGSEGV, signal.SIGABRT)  # of torch, which does not always check whether it got memory
MIB = 2**20


@dataclass(frozen=True)
class Undisturbed:
    """An undisturbed run, and how long it took."""

    folder: Path
    seconds: float


@dataclass(frozen=True)
class Place:
    """Where the cases run, and the runs to compare them with."""

    root: Path
    alone: Undisturbed
    team: Undisturbed
    half: Path
    """A run that was killed in the middle."""
    operations: dict[str, int] = field(default_factory=dict)
    """Number of file operations in a new run and in one that continues `half`, and of those that write."""


@dataclass
class Case:
    """One disturbed run."""

    kind: str
    number: int
    of: int
    """Number of cases of this kind."""
    place: Place
    seed: int
    world: int = 1
    kills: int = 0

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed} {self.kind} {self.number}")
        self.run = self.place.root / f"{self.kind} {self.number}".replace(" ", "-") / "run"

    def point(self, of: str) -> int:
        """Return the operation at which to act. The cases of a kind cover all operations, or are spread over them."""
        every = self.place.operations[of]
        return 1 + (self.number * every // self.of if self.of < every else self.number % every)

    def moment(self) -> float:
        """Return a random time in the run, or shortly after it, in seconds from its start."""
        return self.random.uniform(0, 1.1) * (self.place.alone if self.world == 1 else self.place.team).seconds

    def start(self, prepare: command.Prepare = lambda: None) -> Job:
        """Start the command."""
        return Job(self.run, self.world, prepare)

    def ends(self, prepare: command.Prepare, *sent: int) -> list[str]:
        """Run the command and return how its processes ended."""
        return self.ended(self.start(prepare), sent)

    def ended(self, job: Job, sent: Collection[int] = ()) -> list[str]:
        """Wait for a job that got the signals `sent`, and return how its processes ended."""
        return [judged(end, sent, team=self.world > 1) for end in job.ended()]


Disturb = Callable[[Case], list[str]]
"""Runs and disturbs a case, and returns how its processes ended."""


def operation(case: Case) -> list[str]:
    """Kill a new run at a file operation."""
    case.kills += 1
    return case.ends(command.at_operation(case.run, case.point("beginning"), command.kill), *KILLS)


def operation_again(case: Case) -> list[str]:
    """Kill a run that continues at a file operation."""
    shutil.copytree(case.place.half, case.run)
    case.kills += 1
    return case.ends(command.at_operation(case.run, case.point("going on"), command.kill), *KILLS)


def cut(case: Case) -> list[str]:
    """Kill a run in the middle of a write."""
    case.kills += 1
    return case.ends(command.short_files(case.random.randrange(30_000), killed=True), *KILLS)


def moments(case: Case) -> list[str]:
    """Kill the same run at up to three random times."""
    for _ in range(case.random.randint(1, 3)):
        job = case.start()
        time.sleep(case.moment())
        job.send(signal.SIGKILL)
        found = case.ended(job, KILLS)
        if found != ["killed"]:
            break
        case.kills += 1
    return found


def signals(case: Case) -> list[str]:
    """Send a signal to one process or to all; in half of the cases, another one soon after."""
    sent = case.random.sample(SIGNALS, case.random.randint(1, 2))
    ranks = case.random.choice([(0,), (case.world - 1,), tuple(range(case.world))])
    job = case.start()
    time.sleep(case.moment())
    for number in sent:
        job.send(number, *ranks)
        time.sleep(case.random.uniform(0, 0.1))
    return case.ended(job, sent)


def kill_of_one(case: Case) -> list[str]:
    """Kill one process of a team."""
    job = case.start()
    time.sleep(case.moment())
    job.send(signal.SIGKILL, case.random.randrange(case.world))
    found = case.ended(job, KILLS)
    case.kills += "killed" in found
    return found


def no_space(case: Case) -> list[str]:
    """Let the disk be full from some write on."""
    return case.ends(command.no_space(case.run, case.point("writing")))


def short_files(case: Case) -> list[str]:
    """Limit the size of files."""
    return case.ends(command.short_files(case.random.randrange(30_000), killed=False))


def read_only(case: Case) -> list[str]:
    """Let the folder be read-only from some write on."""
    return case.ends(command.read_only(case.run, case.point("writing")))


def descriptors(case: Case) -> list[str]:
    """Limit the number of open files."""
    return case.ends(command.few_descriptors(case.number % 12))


def memory(case: Case) -> list[str]:
    """Limit memory, but to at least 8 MiB more: with less, Python cannot even import a module."""
    return case.ends(command.little_memory(case.random.randrange(8 * MIB, 64 * MIB)), *CRASHES)


@dataclass(frozen=True)
class Kind:
    """A kind of disturbance, and the number of its cases in a short and in a full attack."""

    disturb: Disturb
    short: int
    full: int
    world: int = 1


KINDS = {
    "killed at a file operation": Kind(operation, 24, 200),
    "killed again at a file operation": Kind(operation_again, 16, 150),
    "killed in the middle of a write": Kind(cut, 6, 50),
    "killed at random moments": Kind(moments, 8, 100),
    "signals": Kind(signals, 14, 300),
    "signals to a team": Kind(signals, 3, 60, world=2),
    "one of a team is killed": Kind(kill_of_one, 2, 40, world=2),
    "full disk": Kind(no_space, 10, 100),
    "files that cannot grow": Kind(short_files, 5, 50),
    "read-only folder": Kind(read_only, 6, 100),
    "few file descriptors": Kind(descriptors, 6, 24),
    "little memory": Kind(memory, 6, 60),
}


def attack(full: bool, seed: int, *, only: tuple[str, ...] = tuple(KINDS)) -> Report:
    """Disturb runs in all ways, or `only` in these, and report what happens."""
    report = Report()
    command.warm_up()
    with TemporaryDirectory(prefix="attack-") as folder:
        place = _prepared(Path(folder))
        report.facts |= {"kills": 0, "file operations": place.operations, "epochs": command.EPOCHS}
        cases = [
            Case(name, number, kind.full if full else kind.short, place, seed, kind.world)
            for name, kind in KINDS.items()
            if name in only
            for number in range(kind.full if full else kind.short)
        ]
        Random(seed).shuffle(cases)  # so that an attack that is stopped early has covered every kind
        processes = multiprocessing.get_context("fork")
        cores = len(os.sched_getaffinity(0))
        plain = (signal.SIGTERM, signal.SIG_DFL)  # the pool ends its processes by it; in this process it means Ctrl-C
        with processes.Pool(cores, signal.signal, plain) as pool, suppress(KeyboardInterrupt):
            for case, outcome in pool.imap_unordered(_happens, cases):
                _note(report, case, outcome)
    points = [report.outcomes.get(kind, {}).get("killed", 0) for kind in list(KINDS)[:2]]
    report.facts |= {"runs": report.total().total(), "kills at file operations": sum(points)}
    return report


def _note(report: Report, case: Case, outcome: str) -> None:
    report.count(case.kind, outcome.partition(":")[0])
    report.facts["kills"] += case.kills
    if outcome not in GOOD:
        report.problems.append(f"{case.kind} {case.number}: {outcome}; seed {case.seed}; its folder is in {KEPT}")


def _prepared(root: Path) -> Place:
    """Make the runs to compare with, and one that was killed in the middle."""
    place = Place(root, _undisturbed(root / "alone", 1), _undisturbed(root / "team", 2), root / "half" / "run")
    beginning = _counted(root / "counted" / "run")
    writing = _counted(root / "writing" / "run", writing=True)
    middle = command.at_operation(place.half, beginning // 2, command.kill)
    assert judged(Job(place.half, prepare=middle).ended()[0], KILLS) == "killed"
    shutil.copytree(place.half, root / "again" / "run")
    going_on = _counted(root / "again" / "run")
    return replace(place, operations={"beginning": beginning, "going on": going_on, "writing": writing})


def _undisturbed(root: Path, world: int) -> Undisturbed:
    root.mkdir()

    ends = Job(root / "run", world).ended()
    if [end and end.code for end in ends] != [0] * world:
        raise RuntimeError(f"the run of the attack does not work: {ends}")
    return Undisturbed(root / "run", max(end.seconds for end in ends if end))


def _counted(run: Path, *, writing: bool = False) -> int:
    """Count the file operations of an undisturbed run."""
    run.parent.mkdir(exist_ok=True)
    counter = run.with_name("count")
    descriptor = os.open(counter, os.O_WRONLY | os.O_CREAT)
    count = command.at_operation(run, 1, lambda: _tick(descriptor), writing=writing)
    assert judged(Job(run, prepare=count).ended()[0]) == "finished"
    os.close(descriptor)
    return counter.stat().st_size


def _tick(descriptor: int) -> None:
    os.write(descriptor, b".")


def _happens(case: Case) -> tuple[Case, str]:
    """Disturb a run, continue it, and compare it with an undisturbed one. This runs in a process of the pool."""
    case.run.parent.mkdir()
    kind = KINDS[case.kind]
    found = kind.disturb(case)
    outcome = next((end for end in found if end not in GOOD), found[0])
    if outcome in GOOD:
        whole = case.place.alone if case.world == 1 else case.place.team
        ends = Job(case.run, case.world).ended()
        if any(judged(end) != "finished" for end in ends):
            outcome = f"cannot continue after it was {outcome}: {ends}"
        elif different := _difference(whole.folder, case.run):
            outcome = f"differs after it was {outcome}: {different}"
    if outcome not in GOOD:
        shutil.copytree(case.run.parent, KEPT / f"{case.seed}-{case.run.parent.name}", dirs_exist_ok=True)
    shutil.rmtree(case.run.parent)
    return case, outcome


def judged(end: Ended | None, sent: Collection[int] = (), *, team: bool = False) -> str:
    """Return how a process, or one of a `team`, ended that got the signals `sent`."""
    if end is None:
        return f"hang: it did not end within {command.PATIENCE:g} s"
    said = [line for line in end.errors.splitlines() if not line.startswith("warning: ")]
    if team:  # torch logs when it loses a process; of ours, only the first process reports
        said = [line for line in said if line.startswith(("error: ", "stopped ", "Aborted!"))]
    if "Traceback" in end.errors:
        return f"traceback: {end.errors!r}"
    if len(said) > 1:
        return f"several lines: {end.errors!r}"
    if not end.code:
        return "finished"
    if -end.code in sent:
        return "killed" if -end.code in KILLS else "died" if -end.code in CRASHES else "stopped"
    line = said[0] if said else ""
    if sent and ("; continue with: " in line or (team and not line and end.code == SAVED)):
        return "saved"
    if sent and (line.startswith("stopped at once: ") or line == "Aborted!" or (not line and end.code - 128 in sent)):
        return "stopped"
    if end.code == 1 and (line.startswith("error: ") or (team and not line)):
        return "refused"
    return f"crash: exit code {end.code}, {end.errors!r}"


def _difference(folder: Path, other: Path) -> str:
    """Return what differs between two finished runs; empty if nothing does."""
    for part in (".", "best"):
        one, two = (Run(place / part) for place in (folder, other))
        if _metrics(one) != _metrics(two):
            return f"metrics of {part}"
        if dict(_weights(one)) != dict(_weights(two)):
            return f"weights of {part}"
    return ""


def _metrics(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in run.rows()]


def _weights(run: Run) -> Iterator[tuple[str, bytes]]:
    """Yield every tensor file of the newest checkpoint, which must be good."""
    found = checkpoint.latest(run.checkpoints)
    if found is not None:
        yield from ((path.name, path.read_bytes()) for path in found.path.glob("*.safetensors"))
