"""The process that reads damaged files one after the other and reports the outcomes. A file may well kill it.

Case `n` damages a file of target `n` modulo the number of targets, with random numbers that depend on the seed and `n`.
"""

import argparse
import json
import os
import re
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from random import Random

import torch

from attack.mutations import TWO_LINES
from attack.targets import Target, targets
from rheobase import limits
from rheobase.recipes import Recipe

ADDRESSES = 16 * 2**30  # bytes; a reader that needs more has failed, and must not take down the machine
SLOW = 5.0  # seconds
GOOD = ("read", "refused")
KEPT = Path("runs/attack")
SETTINGS = {setting.name for setting in fields(Recipe)}
STATUS = Path("/proc/self/status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("originals", type=Path, help="folder with the undamaged files of every target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, nargs=3, metavar=("FIRST", "STOP", "STEP"), required=True)
    parser.add_argument("--show", action="store_true", help="print the traceback, and keep the file")
    chosen = parser.parse_args()
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print too
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    known = [(target, read_files(chosen.originals / target.name)) for target in targets()]
    work = work_of(chosen.originals, chosen.cases[0])
    for number in range(*chosen.cases):
        target, originals = known[number % len(known)]
        print(json.dumps({"case": number, "target": target.name}), file=told)
        folder = work / target.name
        write_files(folder, originals)
        random = Random(f"{chosen.seed} {number}")
        name, content = target.case(originals, random)
        (folder / name).write_bytes(content)
        if target.repair:
            target.repair(folder)
        outcome, grown = measured(target, folder, show=chosen.show)
        if outcome not in GOOD:
            keep(folder, chosen.seed, number)
        found = {"outcome": outcome, "file": name, "grown": grown}
        print(json.dumps({"case": number, "target": target.name} | found), file=told)


def work_of(originals: Path, first: int) -> Path:
    """Return the folder of the process that starts with case `first`."""
    return originals.parent / f"from-{first}"


def measured(target: Target, folder: Path, *, show: bool = False) -> tuple[str, int]:
    """Return how reading ended, including time and memory, and by how many bytes the process grew."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    outcome, grown, seconds = attempt(target, folder, show=show)
    if grown > limits.allowed(size):
        outcome = f"memory: {grown // 2**20} MiB for a file of {size} bytes"
    elif seconds > SLOW:
        outcome = f"slow: {seconds:.1f} s"
    return outcome, grown


def attempt(target: Target, folder: Path, *, show: bool = False) -> tuple[str, int, float]:
    """Return how reading ended, by how many bytes the process grew at most, and the seconds of CPU time."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak size
    before, began = _memory("VmRSS"), time.process_time()
    try:
        target.read(folder)
        outcome = "read"
    except (ValueError, OSError) as error:
        outcome = judged(error, folder)
        if show:
            traceback.print_exc()
    except Exception as error:
        outcome = f"traceback: {type(error).__name__}: {str(error)[:200]!r}"
        if show:
            traceback.print_exc()
    return outcome, _memory("VmHWM") - before, time.process_time() - began


def judged(error: Exception, folder: Path) -> str:
    """Return whether an error is one sentence that names the file."""
    text = str(error)
    if "\n" in text.replace(TWO_LINES, ""):  # line breaks in a name are shown as \\n in the terminal
        return f"several lines: {text[:200]!r}"
    named = str(folder) in text or any(path.name in text for path in folder.rglob("*"))
    in_recipe = text.partition(":")[0] in SETTINGS or re.match(r"(unknown \w+|dataset) '", text)
    if not named and not in_recipe:
        return f"unnamed: {type(error).__name__}: {text[:200]!r}"
    return "refused"


def keep(folder: Path, seed: int, number: int) -> None:
    """Copy the files of a case that broke a promise."""
    shutil.copytree(folder, KEPT / f"{seed}-{number}", dirs_exist_ok=True)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in and below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files, and remove all others."""
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _memory(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
