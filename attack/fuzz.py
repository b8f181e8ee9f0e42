"""Fuzz the readers by coverage: atheris keeps inputs that reach new lines of ours, and changes them further.

This is not part of `make attack`, as atheris does not support every version of Python. Each kind of file is fuzzed in
its own process (`fuzzed`), one at a time on every core. A process ends at its first problem.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory

from attack.report import Report
from attack.targets import targets
from rheobase.extras import installed

SHORT, FULL = 200, 3000  # inputs per kind
CHILD = "attack.fuzzed"
PATIENCE = 3600  # seconds until a process counts as hanging; slow inputs are reported by the process itself
_INPUTS = re.compile(r"stat::number_of_executed_units: (\d+)")
_COVERED = re.compile(r"cov: (\d+)")
_PROBLEM = re.compile(r"^broken: (.*)$", re.MULTILINE)


def attack(full: bool, seed: int, *, inputs: int | None = None, only: tuple[str, ...] = ()) -> Report:
    """Fuzz all kinds of files, or `only` these, and report what happens."""
    if not installed("atheris"):
        print("fuzzing by coverage is skipped: it needs the package atheris (pip install atheris)")
        return Report(facts={"inputs": 0})
    names = [target.name for target in targets() if not only or target.name in only]
    each = inputs or (FULL if full else SHORT)
    report = Report(facts={"kinds": names, "branches reached": {}})
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, said in zip(names, pool.map(lambda name: fuzz(name, each, seed), names), strict=True):
            note(report, name, said)
    report.facts["inputs"] = report.total()["inputs"]
    return report


def fuzz(name: str, inputs: int, seed: int) -> str:
    """Try this many inputs of one kind, and return what the process wrote to stderr."""
    with TemporaryDirectory(prefix="fuzz-") as folder:
        command = [sys.executable, "-m", CHILD, name, folder, str(inputs), str(seed)]
        try:
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return "broken: hang: no answer"
        said = done.stderr.decode(errors="replace")
        if done.returncode and not _PROBLEM.search(said):
            said += f"\nbroken: crash: exit code {done.returncode}: {said[-300:]!r}"
        return said


def note(report: Report, name: str, said: str) -> None:
    """Add what a process wrote to the report."""
    inputs, covered, problem = _INPUTS.search(said), _COVERED.findall(said), _PROBLEM.search(said)
    report.outcomes[name] = Counter(inputs=int(inputs[1]) if inputs else 0)
    if covered:
        report.facts["branches reached"][name] = int(covered[-1])
    if problem:
        report.count(name, "problems")
        report.problems.append(f"{name}: {problem[1]}")
