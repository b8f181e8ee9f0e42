"""The command line: what runs for long in a process of its own, what answers at once in this one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rheobase import __version__
from rheobase.cli import app
from rheobase.models import MODELS
from rheobase.recipes import RECIPES
from tests.cli.here import Here
from tests.docs.test_names import COMMANDS, problem


def rheobase(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rheobase", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=240)


def table(output: str) -> dict[str, list[str]]:
    """The words of every line, by the first of them."""
    return {line.split()[0]: line.split() for line in output.splitlines() if line.split()}


def test_version(here: Here) -> None:
    assert here("--version") == (0, f"rheobase {__version__}\n", "")


def test_a_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        typed = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_RHEOBASE_COMPLETE": "complete_bash"}
        return CliRunner().invoke(app, [], prog_name="rheobase", env=typed).output.split()

    assert completed("rheobase tr") == ["train"]
    assert completed("rheobase plan --gp") == ["--gpus"]


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


def test_models_are_listed(here: Here) -> None:
    rows = table(here("models")[1])
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
    assert json.loads((folder / "environment.json").read_text())["record"]["packages"]["torch"]
    assert len(list((folder / "checkpoints").glob("*/weights.safetensors"))) in (1, 2)


@pytest.mark.slow
def test_train_resume_eval_on_a_few_epochs(tmp_path: Path) -> None:
    settings = ["--set", "epochs=2", "--set", "batch_size=256", "--set", "timesteps=2", "--seed", "3"]
    done = rheobase("train", "demo", *settings, "--out", "run", "--tensorboard", "--save-every", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rheobase eval run" in done.stdout
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (recipe["epochs"], recipe["seed"]) == (2, 3)
    accuracy = next(line for line in done.stdout.splitlines() if line.startswith("test accuracy")).split()[2]

    again = rheobase("eval", "run", cwd=tmp_path)
    assert f"test accuracy {accuracy} %" in again.stdout
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    (newest / "weights.safetensors").write_bytes(b"damaged")
    resumed = rheobase("train", "--resume", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.startswith("warning: checkpoint ")
    assert f"test accuracy {accuracy} %" in resumed.stdout


@pytest.mark.slow
def test_ctrl_c_says_how_to_resume(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rheobase", "train", "demo", "--out", "run", "--set", "epochs=1000"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE)
    while not (tmp_path / "run" / "metrics.jsonl").exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, message = running.communicate(timeout=60)
    assert running.returncode == 130
    assert re.fullmatch(r"stopped at step \d+ of 23000; continue with: rheobase train --resume run\n", message)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_recipes_are_listed(here: Here) -> None:
    assert set(RECIPES) <= set(table(here("recipes")[1]))


def test_plan_shows_all_memory_modes(here: Here) -> None:
    rows = table(here("plan", "demo", "--memory", "16")[1])
    assert 0 < int(rows["speed"][-1]) < int(rows["packed"][-1]) < int(rows["recompute"][-1])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "dmo"], 1, "unknown recipe 'dmo' (did you mean 'demo'?); choose one of demo"),
        (["train"], 1, "no recipe given; choose one of demo"),
        (["train", "demo", "--set", "rate=1"], 1, "a recipe has no setting 'rate'; choose one of data"),
        (["train", "demo", "--set", "network=resnet9"], 1, "unknown network 'resnet9' (did you mean 'resnet"),
        (["train", "cifar10_resnet19_t2", "--data", "full"], 1, "no cifar10 in full: expected cifar-10-batches-bin"),
        (["train", "--resume", "full"], 1, "full is not the folder of a run"),
        (["train", "demo", "--resume", "full"], 1, "--resume continues a run unchanged"),
        (["train", "--resume", "full", "--from", "full"], 1, "--resume continues a run unchanged"),
        (["train", "--resume", "full", "--keep-best"], 1, "--resume continues a run unchanged"),
        (["train", "--resume", "full", "--freeze", "body"], 1, "--resume continues a run unchanged"),
        (["train", "demo", "--from", "nothing"], 1, "nothing is not the folder of a run, a file, or a network of the"),
        (["train", "demo", "--from", "full"], 1, "full is not the folder of a run"),
        (["train", "demo", "--freeze", "body"], 1, "freeze=body needs a trained network to start from"),
        (["train", "demo", "--freeze", "stem"], 2, "invalid value for '--freeze': 'stem' is not one of 'body'; see"),
        (["analyze", "full/something"], 1, "full/something is a file of a deployed network; give the run"),
        (["analyze", "--network", "spike"], 1, "unknown network 'spike'; choose one of resnet17"),
        (["eval", "full"], 1, "full is not the folder of a run"),
        (["pack", "nowhere", "--out", "new"], 1, "nowhere is not a folder; give one with a sub-folder of images per"),
        (["eval"], 2, "missing argument 'network'; see rheobase eval --help"),
        (
            ["export", "network.onnx", "--to", "nir"],
            1,
            "network.onnx is exported already; give the network that it was",
        ),
        (["export", "full"], 2, "missing option '--to'. Choose from: native, nir, onnx; see rheobase export --help"),
        (["train", "--epochs", "3"], 2, "no such option: --epochs; see rheobase train --help"),
        (["train", "demo", "--set"], 2, "option '--set' requires an argument"),
        (["train", "demo", "--set", "epochs"], 1, "expected key=value, got 'epochs'"),
        (["train", "demo", "--set", "decay=half"], 1, "decay: expected a number, got 'half'"),
        (["plan", "demo", "--set", "data=mine"], 1, "unknown dataset 'mine'; choose one of"),
        (["demo", "--device", "tpu9"], 1, "device 'tpu9' is not available here"),
        (["demo", "--out", "full"], 1, "full is not an empty folder"),
        (["report", "full", "--out", "nowhere/a.html"], 1, "its folder does not exist; choose another file"),
        (["paper", "theorem2", "--out", "full/something/x"], 1, "full/something is not a folder; choose another"),
        (["paper", "fig4", "--out", "full/something"], 1, "full/something is not a folder; choose another"),
        (
            ["train", "demo", "--from", "full/something"],
            1,
            "full/something is not a file from `rheobase convert`, whose",
        ),
        (["demo", "--seed", "-1"], 1, "seed: expected 0 or more, got -1"),
        (["dmo"], 2, "no such command 'dmo'. Did you mean 'demo'? See rheobase --help"),
        (["demo", "--seed", "one"], 2, "invalid value for '--seed'"),
    ],
)
def test_errors_are_one_sentence(here: Here, arguments: list[str], code: int, message: str) -> None:
    (here.folder / "full").mkdir()
    (here.folder / "full" / "something").touch()
    (here.folder / "network.onnx").touch()
    found, _, said = here(*arguments)
    assert found == code
    assert message in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)], ids=" ".join)
def test_types_in_help_are_plain_words_and_switches_have_none(
    words: list[str], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = here(*words, "--help")[1]
    assert "--help" in output
    types = {part.partition(">")[0] for line in output.splitlines() for part in line.split(" <")[1:]}
    choices = {found for found in types if "|" in found} | {"body", "item"}
    assert types - choices <= {"int", "float", "path", "text"}
    assert not any("│" in found for found in choices), "a list of choices is cut"


def test_without_a_command_there_is_help(here: Here) -> None:
    code, out, said = here()
    assert code == 2
    assert "Usage: rheobase" in out
    assert not said


@pytest.mark.parametrize("arguments", [["--debug", "eval", "none"], ["eval", "none", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str], tmp_path: Path) -> None:
    done = rheobase(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "none is not the folder of a run" in done.stderr


@pytest.mark.parametrize(("words", "found"), [("rheobase tr", "train"), ("rheobase train --keep", "--keep-best")])
def test_the_shell_completes_commands_and_options(words: str, found: str) -> None:
    environment = {"_RHEOBASE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "rheobase"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.stdout.split() == [found]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_ends_with_an_example(command: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, output, messages = here(command, "--help")
    assert (code, messages) == (0, "")
    begin, _, line = output.rstrip().splitlines()[-1].strip().partition(" ")
    assert begin == "Example:"
    program, *words = line.split()
    assert (program, words[0]) == ("rheobase", command)
    assert problem(words) is None
