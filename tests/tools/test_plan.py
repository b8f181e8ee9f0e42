"""The plan of the results that need a GPU: its commands exist, and so do their recipes and settings."""

import re
import shlex
import subprocess
from importlib.util import find_spec

import pytest

from rheobase import recipes
from tools.results import ROOT
from tools.run_plan import Command, read_plan

PLAN = read_plan(ROOT / "results" / "gpu.plan")


@pytest.mark.parametrize("command", PLAN, ids=lambda command: command.name)
def test_a_command_can_run(command: Command) -> None:
    subprocess.run(["bash", "-n", "-c", command.shell], check=True)
    modules = re.findall(r"python -m (\S+)", command.shell)
    assert modules
    assert all(find_spec(module) for module in modules)
    for part in command.shell.replace("}", ";").replace("&&", ";").split(";"):
        words = shlex.split(part)
        settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        assert all((ROOT / words[i + 1]).is_file() for i, word in enumerate(words) if word == "--plugin")
        names = [word for word in words if word in recipes.RECIPES]
        assert len(names) == (1 if settings else len(names))
        for name in names:
            recipes.get(name).changed(settings)
        assert names or "train" not in words or "--resume" in words


def trained() -> dict[str, recipes.Recipe]:
    """The recipe of every run that the plan trains or forks, by its folder."""
    found = {}
    for command in PLAN:
        for part in command.shell.replace("}", ";").replace("&&", ";").split(";"):
            words = shlex.split(part)
            names = [word for word in words if word in recipes.RECIPES]
            if names and ("tools.fork" in words or "--out" in words):
                out = words[words.index(names[0]) + 1] if "tools.fork" in words else words[words.index("--out") + 1]
                settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
                found[out] = recipes.get(names[0]).changed(settings)
    return found


def test_nothing_is_made_of_half_trained_networks() -> None:
    runs, used = trained(), 0
    for command in PLAN:
        for run in re.findall(r"rheobase (?:convert|paper \w+) (\$RUNS/\S+)", command.shell):
            used += 1
            check = f"grep -q '\"epoch\": {runs[run].epochs},' {run}/metrics.jsonl && "
            assert command.shell.startswith(check), command.name
    assert used > 5


def test_what_a_command_starts_from_is_made_or_looked_for_before() -> None:
    found = 0
    for command in PLAN:
        for path in re.findall(r"--from (\$RUNS/\S+)", command.shell):
            found += 1
            before = command.shell.partition("--from")[0]
            assert f"test -f {path} && " in before or "rheobase convert" in before, command.name
    assert found == 2
