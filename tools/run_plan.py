"""Run the commands of a plan one after the other, as many as fit into the time.

python -m tools.run_plan PLAN --seconds 1500 --out DIR

A line of the plan has the estimated seconds, a name and a shell command. Lines that start with # are comments:

    420  t2-seed-0  rheobase train cifar10_resnet19_t2 --data $CIFAR10 --out runs/t2/seed-0 --continue

Put the most important command first. One that does not fit into the time left is passed over, and one that fails does
not stop the others. DIR/NAME.log has the output of a command, DIR/ended.jsonl how each ended. The same call again
continues: commands that succeeded are not run a second time. When the time is up, the running command gets SIGINT, and
SIGKILL if it is still running 20 s later. The exit code is 0 once all commands have succeeded.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

GRACE = 20.0  # seconds from SIGINT to SIGKILL
ENDING = (signal.SIGINT, signal.SIGTERM)
LINE = re.compile(r"(\d+)\s+([\w.-]+)\s+(\S.*)")


class Command(NamedTuple):
    """A line of the plan."""

    estimate: int
    name: str
    shell: str


def read_plan(path: Path) -> list[Command]:
    """Return the commands of a plan."""
    commands: dict[str, Command] = {}
    for number, line in enumerate(map(str.strip, path.read_text().splitlines()), 1):
        if line and not line.startswith("#"):
            found = LINE.fullmatch(line)
            if found is None or found[2] in commands:
                raise ValueError(f"{path}, line {number}: expected seconds, a new name and a command, got '{line}'")
            commands[found[2]] = Command(int(found[1]), found[2], found[3])
    return list(commands.values())


def succeeded(record: Path) -> set[str]:
    """Return the names of the commands that succeeded."""
    lines = record.read_text().splitlines() if record.exists() else []
    return {row["name"] for row in map(json.loads, lines) if row["exit_code"] == 0}


def run(command: Command, log: Path, seconds: float) -> int:
    """Run a command for at most this many seconds, append its output to the log, and return its exit code."""
    process = None
    try:
        with open(log, "a") as file, held_back():
            print(f"$ {command.shell}", file=file, flush=True)
            process = subprocess.Popen(command.shell, shell=True, stdout=file, stderr=file, start_new_session=True)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    finally:  # also if this process is told to end
        for number in (signal.SIGINT, signal.SIGKILL) if process else ():
            if process.poll() is None:
                os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
    return process.returncode


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back the signals that end this process: while a command starts, nobody could end the command."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


def last_words(log: Path) -> str:
    """Return a colon and the last line of a log; nothing if the command wrote nothing."""
    last = log.read_text(errors="replace").splitlines()[-1]
    return "" if last.startswith("$ ") else f": {last}"


def work_off(commands: list[Command], out: Path, seconds: float) -> dict[Command, str]:
    """Run commands for this many seconds. Return what became of each, in words."""
    deadline, record, results = time.monotonic() + seconds, out / "ended.jsonl", {}
    for command in commands:
        left, start = deadline - time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        if command.name in succeeded(record):
            results[command] = "succeeded before"
        elif command.estimate > left:
            results[command] = "not enough time left"
        else:
            print(f"{command.name}: about {command.estimate} s, of {left:.0f} s left", flush=True)
            code = run(command, log := out / f"{command.name}.log", left)
            took = round(left - (deadline - time.monotonic()), 1)
            with open(record, "a") as file:
                row = {"name": command.name, "start": start, "seconds": took, "exit_code": code}
                file.write(json.dumps(row) + "\n")
            results[command] = f"{took:.0f} s, exit code {code}{last_words(log) if code else ''}"
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seconds", type=float, required=True, help="time for all commands together")
    parser.add_argument("--out", type=Path, required=True, help="folder for logs")
    options = parser.parse_args()
    commands = read_plan(options.plan)
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for command, words in work_off(commands, options.out, options.seconds).items():
        print(f"{command.name:24} {command.estimate:6d} s  {words}")
    sys.exit(not succeeded(options.out / "ended.jsonl").issuperset(command.name for command in commands))


if __name__ == "__main__":
    main()
