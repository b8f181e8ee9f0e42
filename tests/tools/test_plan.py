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
        names = [word for word in words if word in recipes.RECIPES]
        assert len(names) == (1 if settings else len(names))
        for name in names:
            recipes.get(name).changed(settings)
        assert names or "train" not in words or "--resume" in words
