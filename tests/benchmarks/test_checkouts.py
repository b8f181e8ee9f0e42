"""Contenders and starts from the sources of another checkout, and records of benchmarks run as commands."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import checkouts, startup, step
from benchmarks.contenders import Setting
from rheobase.train.sources import tree_id
from tests.train.test_record import ENTRIES

pytestmark = pytest.mark.slow

SMALL = Setting(timesteps=3, batch=5, device="cpu", network="resnet8", image_size=8)
ROOT = checkouts.ROOT


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another checkout, with modules where they were before the rooms."""
    package = tmp_path / "other" / "src" / "rheobase"
    shutil.copytree(ROOT / "src" / "rheobase", package, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    for name in ("capture.py", "heap.py"):
        (package / "train" / name).rename(package / name)
    return tmp_path / "other"


def break_build(source: Path) -> None:
    with open(source / "rheobase" / "models" / "__init__.py", "a") as file:
        file.write("\n\ndef build(*_, **__):\n    raise RuntimeError('built elsewhere')\n")


def answer(name: str, source: Path | None) -> dict:
    worker = step.Worker(name, SMALL, source)
    try:
        return worker.ask("prepare")
    finally:
        worker.stop()


def test_a_contender_from_another_checkout(other: Path) -> None:
    source = checkouts.source_folder(other)
    assert source == checkouts.source_folder(other / "src")
    assert answer("before-rheobase-speed", source)["parameters"] == 78074
    break_build(source)
    assert answer("before-rheobase-speed", source)["error"] == "RuntimeError: built elsewhere"
    assert answer("rheobase-speed", None)["parameters"] == 78074


def test_a_folder_without_the_package(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not contain rheobase"):
        checkouts.source_folder(tmp_path)


def test_before_and_after_in_one_command(other: Path, tmp_path: Path) -> None:
    break_build(other / "src")  # to see whose code it was
    out = tmp_path / "step.json"
    options = ["--only", "rheobase-speed", "--network", "resnet8", "--image-size", "8", "--timesteps", "3"]
    options += ["--batch", "5", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.step", *options, "--before", str(other), "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=checkouts.environment(None), check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert found["record"].keys() == ENTRIES
    assert found["record"]["command"] == f"python -m benchmarks.step {' '.join(options)} --before other --out step.json"
    assert found["record"]["sources"]["benchmarks"] == tree_id(ROOT / "benchmarks")
    assert found["before"] == {"src": tree_id(other / "src")} != {"src": found["record"]["sources"]["src"]}
    (run,) = found["runs"]
    assert {*run["results"]} == {"floor", "rheobase-speed"}
    assert run["skipped"] == {"before-rheobase-speed": "RuntimeError: built elsewhere"}


def test_a_start_ends_with_the_first_step() -> None:
    found = startup.measure(startup.OWN, ["demo", "--device", "cpu", "--set", "timesteps=1"])
    assert [*found] == ["import_torch", "import_rheobase_after_it", "first_step_cold", "first_step_warm"]
    assert all(seconds > 0 for seconds in found.values())


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(ValueError, match=r"rheobase cannot start: .*unknown recipe"):
        startup.measure(startup.OWN, ["nothing"])
