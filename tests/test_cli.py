"""The command line, as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rheobase import __version__
from rheobase.models import MODELS


def rheobase(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rheobase", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=240)


def test_version() -> None:
    assert rheobase("--version").stdout == f"rheobase {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    program = (
        "import sys; from rheobase.cli import main\n"
        f"sys.argv[1:] = {arguments}\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'typer' in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rheobase" in done.stdout


def test_models_are_listed() -> None:
    done = rheobase("models")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()}
    assert set(MODELS) <= set(rows)
    assert rows["resnet19"][1:6] == ["19", "14.67", "M", "2.29e+09", "3x32x32"]


def test_demo_learns_and_leaves_a_run(tmp_path: Path) -> None:
    done = rheobase("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "demo-1"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert done.stdout.count("\nepoch ") == len(rows), "one line per epoch without a terminal"
    assert rows[-1]["test_accuracy"] >= 0.97
    assert f"test accuracy {100 * rows[-1]['test_accuracy']:.2f} %" in done.stdout
    assert "runs/demo-1" in done.stdout
    for layer, rate in rows[-1]["firing_rates"].items():
        assert layer in done.stdout
        assert 0 < rate < 1
    assert json.loads((folder / "recipe.json").read_text())["network"] == "resnet8"
    assert json.loads((folder / "environment.json").read_text())["packages"]["torch"]
    assert len(list((folder / "checkpoints").glob("*/weights.safetensors"))) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demo", "--device", "tpu9"], 1, "device 'tpu9' is not available here"),
        (["demo", "--out", "full"], 1, "full is not an empty folder"),
        (["demo", "--seed", "-1"], 1, "seed: expected 0 or more, got -1"),
        (["dmo"], 2, "No such command 'dmo'"),
        (["demo", "--seed", "one"], 2, "Invalid value for '--seed'"),
    ],
)
def test_errors_are_one_sentence(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    done = rheobase(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--debug", "demo"], ["demo", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str]) -> None:
    done = rheobase(*arguments, "--device", "tpu9")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "device 'tpu9' is not available here" in done.stderr
