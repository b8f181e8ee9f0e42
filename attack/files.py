"""Damage files of every kind that the program reads. Each must be read, or refused in one sentence that names it.

Separate processes read them, so that crashes, hangs and the memory of each are seen.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attack.report import Report
from attack.targets import targets
from attack.worker import GOOD, KEPT, keep, work_of, write_files

SHORT, FULL = 3_000, 50_000  # files
WORKER = "attack.worker"
PATIENCE = 60.0  # seconds of silence after which a process counts as hanging; slow ones report it themselves


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    step: int
    folder: Path
    """Where it writes damaged files."""
    case: dict[str, Any] = field(default_factory=dict)
    """The last case that it reported."""
    rest: bytes = b""
    """The start of an incomplete line."""


def attack(full: bool, seed: int, *, files: int | None = None) -> Report:
    """Damage this many files and report what happens."""
    number, report = files or (FULL if full else SHORT), Report()
    with TemporaryDirectory(prefix="attack-") as folder:
        originals = Path(folder) / "originals"
        names = []
        for target in targets():
            write_files(originals / target.name, target.files())
            target.read(originals / target.name)  # undamaged files must be readable
            names.append(target.name)
        try:
            _watch(originals, number, seed, report)
        except KeyboardInterrupt:
            print("stopped early; the report covers what was done so far")
    report.facts |= {"files": report.total().total(), "kinds": names}
    return report


def _watch(originals: Path, number: int, seed: int, report: Report) -> None:
    """Let processes work through the cases. If one dies or hangs, another continues after its last case."""
    count = len(os.sched_getaffinity(0))
    report.facts["largest growth, MiB"] = 0
    with selectors.DefaultSelector() as selector:
        try:
            for first in range(count):
                _start(selector, originals, seed, (first, number, count))
            while selector.get_map():
                ready = [key for key, _ in selector.select(PATIENCE)]
                for key in ready or list(selector.get_map().values()):
                    worker: _Worker = key.data
                    if content := os.read(key.fd, 2**16) if ready else b"":
                        _listen(report, worker, content, seed)
                        continue
                    selector.unregister(key.fileobj)
                    following = _ended(report, worker, seed, hangs=not ready)
                    if following is not None and following < number:
                        _start(selector, originals, seed, (following, number, count))
        finally:
            for key in selector.get_map().values():
                key.data.process.kill()
                key.data.process.wait()


def _start(selector: selectors.BaseSelector, originals: Path, seed: int, cases: tuple[int, int, int]) -> None:
    arguments = [str(originals), "--seed", str(seed), "--cases", *map(str, cases)]
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    selector.register(process.stdout, selectors.EVENT_READ, _Worker(process, cases[2], work_of(originals, cases[0])))


def _listen(report: Report, worker: _Worker, content: bytes, seed: int) -> None:
    *lines, worker.rest = (worker.rest + content).split(b"\n")
    for line in lines:
        worker.case = json.loads(line)
        if "outcome" in worker.case:
            _note(report, worker.case, seed)
            grown = worker.case["grown"] // 2**20
            report.facts["largest growth, MiB"] = max(report.facts["largest growth, MiB"], grown)


def _ended(report: Report, worker: _Worker, seed: int, *, hangs: bool) -> int | None:
    """Record a case that ended its process. Return the number of the next case; None if all are done."""
    if hangs:
        worker.process.kill()
    code = worker.process.wait()
    assert worker.process.stdout is not None
    worker.process.stdout.close()
    if not code:
        return None
    if not worker.case:
        raise RuntimeError("a process of the attack does not start; try `python -m attack.worker --help`")
    if "outcome" not in worker.case:
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        keep(worker.folder / worker.case["target"], seed, worker.case["case"])
        _note(report, worker.case | {"outcome": "hang: no answer" if hangs else f"crash: {reason}"}, seed)
    return worker.case["case"] + worker.step


def _note(report: Report, case: dict[str, Any], seed: int) -> None:
    outcome = case["outcome"]
    report.count(case["target"], outcome.partition(":")[0])
    if outcome not in GOOD:
        kept = KEPT / f"{seed}-{case['case']}"
        report.problems.append(f"{case['target']}: {outcome}; its files are in {kept}")
