"""The tutorials do what they say: their Python and their commands are run, from top to bottom, in an empty folder."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from rheobase.train.runs import Run, load_network
from tests.deploy.executors import quiet
from tests.story.plugin import Command

pytestmark = pytest.mark.slow
PATIENCE = 300.0  # seconds for a block; the machine may be busy
TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
# Each has a block of its own in hardware.md, which prints this name.
OTHERS = {"onnxruntime": "ONNX Runtime", "snntorch": "snnTorch", "spikingjelly": "SpikingJelly", "norse": "Norse"}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path / "cache"))


def blocks(name: str) -> Iterator[tuple[str, str]]:
    """Kind and content of the blocks that are to be run; commands that take long stand in others."""
    text = (TUTORIALS / f"{name}.md").read_text()
    yield from re.findall(r"^```(python|console|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def follow(name: str, rheobase: Command, without: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """Do what a tutorial says, but for blocks that import one of `without`.

    Returns what its Python knows in the end, and what was printed: by each command, and as "" by Python.
    """
    known: dict[str, Any] = {"__name__": name}
    printed = {"": ""}
    for kind, block in blocks(name):
        imported = re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
        if kind == "python" and not {*imported} & {*without}:
            with quiet(), redirect_stdout(io.StringIO()) as out:  # other libraries may warn
                exec(compile(block, f"{name}.md", "exec"), known)
            printed[""] += out.getvalue()
        if kind == "bash":
            printed[block] = script(block)
        for line in block.replace("\\\n", " ").splitlines() if kind == "console" else ():
            code, words, err = rheobase(*shlex.split(line)[1:])
            assert code == 0, f"{line}: {err}"
            printed[line] = words
    return known, printed


def script(block: str) -> str:
    """Run a block in a shell with the commands of this Python, and return everything that it prints."""
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        env=os.environ | {"PATH": commands, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{block}: {done.stdout}"
    return done.stdout


def test_cluster(rheobase: Command) -> None:
    _, printed = follow("cluster", rheobase)
    first, stopped, again = (words for block, words in printed.items() if "torchrun" in block)
    assert "epoch 3/3" in first
    assert re.search(r"stopped at step \d+ of 69", stopped), stopped
    assert "epoch 1/3" in stopped
    assert "epoch 3/3" not in stopped, "the signal came too late"
    assert "epoch 1/3" not in again
    assert "epoch 3/3" in again
    assert printed[""] == "same weights: True\n"
    assert Run(Path("runs/stopped")).rows()[-1]["test_accuracy"] > 0.5
    (planned,) = (out for line, out in printed.items() if line.startswith("rheobase plan"))
    assert "4 x 8" in planned


def test_pictures(rheobase: Command) -> None:
    pytest.importorskip("PIL", reason="reading images needs pillow")
    follow("pictures", rheobase)
    run = Run(Path("runs/photos"))
    assert run.data.classes == ("checks", "rings", "stripes")
    assert run.rows()[-1]["test_accuracy"] > 0.6
    assert Path("runs/photos/report.html").exists()


def test_event_camera(rheobase: Command) -> None:
    known, printed = follow("event-camera", rheobase)
    run = Run(Path("runs/gestures"))
    assert run.data.classes == ("digit 0", "digit 1", "digit 4")
    assert run.rows()[-1]["test_accuracy"] > 0.6
    assert known["frames"].shape == (run.recipe.timesteps, *run.data.shape)
    (drawn,) = (out for line, out in printed.items() if line.startswith("rheobase recording"))
    assert f"{len(known['recording'].t)} events" in drawn


def test_hardware(rheobase: Command) -> None:
    for needed in ("nir", "onnx"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: the tutorial was not followed")
    missing = tuple(package for package in OTHERS if not is_there(package))
    known, printed = follow("hardware", rheobase, without=missing)
    assert "spike for spike" in printed["rheobase verify runs/digits/network-portable.nir runs/digits"]
    with torch.no_grad():
        trained = load_network(known["run"])(known["images"], known["timesteps"])
    expected = float(known["accuracy"](trained))
    assert expected > 0.3
    for package in (other for other in OTHERS if other not in missing):
        (found,) = re.findall(rf"^{OTHERS[package]} (\S+)$", printed[""], re.MULTILINE)
        assert float(found) == pytest.approx(expected, abs=0.02), package  # an image or two may flip in float32
    if missing:
        pytest.skip(f"not installed, so their blocks were not run: {', '.join(missing)}")


def is_there(package: str) -> bool:
    try:
        with quiet():
            import_module(package)
    except ImportError:
        return False
    return True
