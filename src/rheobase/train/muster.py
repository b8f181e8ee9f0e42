"""Checks before a team trains: every process is ready, all would train the same, and all see the folder of the run.

If something is wrong in any process, the first process reports it in one sentence, and all end.
"""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from rheobase.files import atomic_write
from rheobase.recipes import Recipe
from rheobase.recipes.settings import as_text, differences
from rheobase.train.distributed import Team
from rheobase.train.parts import Parts
from rheobase.train.sources import sources

SIGN = ".seen"  # a temporary file in the folder of the run
SLOW = 10.0  # seconds that a file system may take to show a file to other machines


@contextmanager
def together(team: Team) -> Iterator[None]:
    """Raise an error of any process in this context in the first process. The others wait for it, and end with it."""
    if team.world == 1:
        yield
        return
    problem: Exception | None = None
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        problem = error
    found = _gathered(team, problem and (str(problem) or type(problem).__name__, platform.node()))
    if team.leads:
        if problem is not None:
            raise problem
        for rank, said in enumerate(found):
            if said is not None:
                raise ValueError(f"{_who(rank, said[1])}: {said[0]}")
    team.confer(True)  # fails if the first process has ended


@dataclass(frozen=True)
class Wants:
    """What a process is about to train."""

    recipe: Recipe
    data: str
    precision: str
    code: dict[str, str]
    torch: str
    node: str


def refuse_others(team: Team, recipe: Recipe, parts: Parts, data: str, precision: str) -> None:
    """Raise a ValueError if the recipe, code, data or precision of a process differ from those of the first.

    `data` is a checksum, `precision` that of the computation.
    """
    if team.world == 1:
        return
    plugins = {setting: plugin.sha256 for setting, plugin in parts.origins().items()}
    own = Wants(recipe, data, precision, sources() | plugins, torch.__version__, platform.node())
    with together(team):
        for rank, other in enumerate(_gathered(team, own)):
            who = _who(rank, other.node)
            if found := differences(own.recipe, other.recipe):
                key, (here, there) = next(iter(found.items()))
                raise ValueError(
                    f"{who} trains another recipe: {key} is {as_text(there)} there and {as_text(here)} in the first "
                    "process; start all with the same command"
                )
            if (other.code, other.torch) != (own.code, own.torch):
                what = f"torch {other.torch}, not {own.torch}" if other.torch != own.torch else "other sources"
                raise ValueError(f"{who} has {what}; install the same version of everything on all machines")
            if other.data != own.data:
                raise ValueError(f"{who} has other data: labels or content differ; give all machines the same data")
            if other.precision != own.precision:
                raise ValueError(
                    f"{who} computes in {other.precision} and the first process in {own.precision}, because their "
                    "hardware differs; use machines of one kind, or start a run with --set precision=fp32"
                )


def refuse_blind(team: Team, folder: Path) -> None:
    """Raise a ValueError if a process does not see what the first process writes into `folder`."""
    if team.world == 1:
        return
    sign, path = team.confer(uuid4().hex), folder / SIGN
    try:
        if team.leads:
            with atomic_write(path) as part:
                part.write_text(sign)
        with together(team):
            team.confer(True)  # now the file exists
            if not _shows(path, sign):
                raise ValueError(
                    f"{folder} is not the folder that the first process writes to; give one that all machines share"
                )
    finally:
        if team.leads:
            path.unlink(missing_ok=True)


def _shows(path: Path, sign: str) -> bool:
    until = time.monotonic() + SLOW
    while True:
        try:
            if path.read_text() == sign:
                return True
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.1)


def _who(rank: int, node: str) -> str:
    return f"process {rank} on {node}" if node != platform.node() else f"process {rank}"


def _gathered(team: Team, own: Any) -> list[Any]:
    """Return what every process has, in the first process; an empty list in the others."""
    found = [None] * team.world if team.leads else None
    dist.gather_object(own, found, dst=0, group=team.hosts)
    return found or []
