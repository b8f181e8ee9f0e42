"""Runs that go on, several seeds, and runs side by side, by command."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rheobase import plugins
from rheobase.recipes import Recipe
from rheobase.train import losses
from rheobase.train.runs import Run
from tests.cli.here import Here
from tests.runs import made
from tests.train.short_runs import assert_identical

SETTINGS = ["--set", "epochs=2", "--set", "batch_size=411", "--set", "timesteps=1"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["in the last epoch of the first run", "in the second run"])
def _ctrl_c(request: pytest.FixtureRequest) -> None:
    """A loss that sends Ctrl-C to this process, once; a run calls it 15 times, first to find out how long it takes."""
    called, last = 0, 14 if "first" in request.param else 20

    @plugins.loss
    def stopping(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
        nonlocal called
        called += 1
        if called == last:
            os.kill(os.getpid(), signal.SIGINT)
        return losses.mean(logits, labels, recipe)


@pytest.mark.parametrize(("times", "code"), [(1, 75), (2, 143)])
def test_a_scheduler_is_told_whether_it_was_saved(here: Here, times: int, code: int) -> None:
    sent = 0

    @plugins.loss
    def ending(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
        nonlocal sent
        while sent < times and (Path("run") / "metrics.jsonl").exists():
            sent += 1
            os.kill(os.getpid(), signal.SIGTERM)
        return losses.mean(logits, labels, recipe)

    found, _, messages = here("train", "demo", *SETTINGS, "--set", "loss=ending", "--out", "run", "--save-every", "0")
    assert found == code
    last = messages.splitlines()[-1]
    if times == 1:
        assert re.fullmatch(r"stopped at step [5-8] of 8; continue with: rheobase train --resume run", last)
    else:
        assert last == "stopped at once: nothing was saved; any earlier checkpoints are intact"
    assert list(Path("run/checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("_ctrl_c")
def test_several_seeds_go_on_as_one(here: Here) -> None:
    command = ["train", "demo", *SETTINGS, "--set", "loss=stopping", "--seeds", "3,4"]
    code, output, messages = here(*command)
    assert code == 130
    assert "seed 3, 1 of 2\n" in output
    again = re.search(r"continue with: rheobase (.*)\n", messages)
    assert again is not None
    assert again[1].endswith("--seeds=3,4 --out runs/demo-1 --continue")
    rows = Run(Path("runs/demo-1/seed-4")).rows()
    assert not rows or rows[-1]["epoch"] < 2
    first = (Path("runs/demo-1/seed-3") / "metrics.jsonl").read_bytes()

    code, output, messages = here(*again[1].split())
    assert (code, messages) == (0, "")
    assert "runs/demo-1/seed-3 is finished: 2 epochs of demo, seed 3\n" in output
    assert (Path("runs/demo-1/seed-3") / "metrics.jsonl").read_bytes() == first
    last = [Run(Path(f"runs/demo-1/seed-{seed}")).rows()[-1] for seed in (3, 4)]
    mean, deviation = (50 * (last[0]["test_accuracy"] + sign * last[1]["test_accuracy"]) for sign in (1, -1))
    expected = f"test accuracy over 2 seeds: {mean:.2f} +- {2**0.5 * abs(deviation):.2f} % after the last epoch"
    assert expected in output
    assert "rheobase compare runs/demo-1" in output
    assert "--from" not in output

    code, output, _ = here(*again[1].split())
    assert code == 0
    assert re.search(r"rheobase train .*--from runs/demo-1/seed-3 .*  fine-tune it\n", output)

    whole = ["train", "demo", *SETTINGS, "--set", "loss=stopping", "--seed", "4", "--out", "whole"]
    assert here(*whole)[0] == 0
    assert_identical(Path("whole"), Path("runs/demo-1/seed-4"))
    assert last[1]["elapsed"] < last[0]["elapsed"]  # which counts from the start of this process, the other one not


def test_the_same_command_again_is_right(here: Here) -> None:
    command = ["train", "demo", *SETTINGS, "--out", "run", "--continue"]
    code, output, _ = here(*command)
    assert code == 0
    assert "epoch 2/2" in output
    assert "rheobase eval run" in output
    metrics = Path("run/metrics.jsonl").read_bytes()
    code, output, messages = here(*command)
    assert (code, messages) == (0, "")
    assert "run is finished: 2 epochs of demo, seed 0\n" in output
    assert "rheobase train demo --from run" in output
    assert here("train", "--resume", "run") == (0, output, "")
    assert Path("run/metrics.jsonl").read_bytes() == metrics
    advice = next(line for line in output.splitlines() if "--from" in line).partition("  fine-tune it")[0]
    assert "epoch 2/2" in here(*shlex.split(advice)[1:], "--out", "tuned")[1]
    code, _, messages = here(*command, "--seed", "7")
    assert code == 1
    assert messages.startswith("error: run holds a run of another recipe: seed is 0 there and 7 here; continue with")
    code, _, messages = here("train", "demo", *SETTINGS, "--seeds", "1,2", "--out", "run", "--continue")
    assert (code, messages) == (1, "error: run is a single run, not a folder for several runs; choose another\n")


def test_a_finished_run_suggests_no_command_that_would_miss_a_plugin(here: Here) -> None:
    plugins.loss("mine")(losses.mean)
    assert here("train", "demo", *SETTINGS, "--set", "loss=mine", "--out", "run")[0] == 0
    assert "--set loss=mine  fine-tune it\n" in here("train", "--resume", "run")[1]
    del plugins.loss.parts["mine"], plugins.loss.origins["mine"]  # as in a command without --plugin
    assert here("train", "--resume", "run") == (0, "run is finished: 2 epochs of demo, seed 0\n", "")


def test_seeds_on_held_out_images_say_so(here: Here) -> None:
    code, output, _ = here("train", "demo", *SETTINGS, "--set", "holdout=411", "--seeds", "1,2", "--out", "runs")
    assert code == 0
    assert "accuracy on held-out training images over 2 seeds: " in output
    assert "test accuracy" not in output


def test_outputs_that_are_no_spikes_are_not_called_so(here: Here) -> None:
    _, output, _ = here("train", "demo", *SETTINGS, "--set", "normalisation=neunorm", "--out", "run")
    for told in (output, here("eval", "run")[1]):
        assert "active neurons" in told
        assert "spikes per neuron" not in told


@pytest.mark.parametrize(("neuron", "method"), [("relu", "calibrated"), ("qcfs", "qcfs")])
def test_after_a_relu_network_comes_its_conversion(here: Here, neuron: str, method: str) -> None:
    _, output, _ = here("train", "demo", *SETTINGS, "--set", f"neuron={neuron}", "--out", "run")
    hint = re.search(r"rheobase (convert run .*?)  ", output)
    assert hint is not None
    for told in (output, here("eval", "run")[1]):
        assert "active neurons" in told
        assert "spikes" not in told.splitlines()[1]
    code, output, _ = here(*hint[1].split())
    assert code == 0
    assert f"wrote run/{method}-t32.safetensors" in output


def test_a_run_is_no_recipe(here: Here) -> None:
    made(here.folder / "run", accuracies=[0.5])
    said = "error: run is a run, not a recipe; give it with --resume, or with --from and a recipe\n"
    assert here("train", "run") == (1, "", said)
    made(here.folder / "demo", accuracies=[0.5])  # a folder of the same name hides no recipe
    assert here("train", "demo", "--set", "lr=-1")[2].startswith("error: lr: expected ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--continue"], "--continue needs --out, the folder of the run"),
        (["--continue", "--out", "run"], "no recipe given; choose one of demo"),
        (["demo", "--new-data"], "--new-data is for a run that is resumed; add --resume or --continue"),
        (["--resume", "run", "--continue"], "--resume continues a run unchanged"),
        (["--resume", "run", "--seeds", "1"], "--resume continues a run unchanged"),
        (["demo", "--seed", "1", "--seeds", "1,2"], "--seed and --set seed= are for one run, --seeds for several"),
        (["demo", "--set", "seed=1", "--seeds", "1,2"], "--seed and --set seed= are for one run, --seeds for several"),
        (["demo", "--seeds", "1,1"], "--seeds: expected different whole numbers separated by commas, got '1,1'"),
        (["demo", "--seeds", "1;2"], "--seeds: expected different whole numbers"),
        (["demo", "--seeds", "-1"], "--seeds: expected different whole numbers"),
        (["demo", "--seeds", "1", "--out", "full"], "full is not an empty folder; choose another, or add --continue"),
        (["demo", "--seeds", "1,2", "--set", "data=mine"], "unknown dataset 'mine'"),
        (["demo", "--out", "full", "--continue"], "full is not an empty folder"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(here: Here, arguments: list[str], message: str) -> None:
    (here.folder / "full").mkdir()
    (here.folder / "full" / "something").touch()
    code, _, said = here("train", *arguments)
    assert code == 1
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
    assert [path for path in here.folder.rglob("*") if path.is_file()] == [here.folder / "full" / "something"]
    assert not [*here.folder.glob("runs/*")]


def test_a_run_of_another_recipe_is_found_before_the_first_seed_starts(here: Here) -> None:
    made(here.folder / "set" / "seed-5", "seed=5", "lr=0.3", accuracies=[0.5])
    code, _, said = here("train", "demo", "--set", "epochs=3", "--seeds", "4,5", "--out", "set", "--continue")
    assert code == 1
    assert "set/seed-5 holds a run of another recipe: lr is 0.3 there and 0.1 here" in said
    assert not Path("set/seed-4").exists()


def test_compare_shows_rows_pictures_and_settings(here: Here) -> None:
    for seed, last in ((0, 0.75), (1, 0.875)):
        made(here.folder / "runs" / f"seed-{seed}", f"seed={seed}", accuracies=[0.5, last, last])
    made(here.folder / "other", "decay=0.5", accuracies=[0.25, 0.5])
    code, output, messages = here("compare", "runs", "other", "--html", "page.html")
    assert (code, messages) == (0, "")
    lines = [line.split() for line in output.splitlines()]
    assert ["1", "2", "81.25", "+-", "8.84", "81.25", "+-", "8.84", "4", "30", "s"] in [line[:11] for line in lines]
    assert ["2", "1", "50.00", "50.00", "4", "20", "s"] in [line[:7] for line in lines]
    assert " 1  runs, seeds 0, 1\n 2  other, seed 0\n" in output
    assert "  decay: 0.25 (1); 0.5 (2)\n" in output
    assert "test accuracy from 50.00 to 90.09 %" in output
    assert "note: row 2 is at epoch 2 of 3\n" in output
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_compare_as_json(here: Here) -> None:
    made(here.folder / "a", accuracies=[0.5])
    made(here.folder / "b", "lr=0.2", accuracies=[])
    code, output, messages = here("compare", "a", "b", "--html", "page.html", "--json")
    assert (code, messages) == (0, "")
    found = json.loads(output)
    assert [row["name"] for row in found["rows"]] == ["a", "b"]
    assert found["rows"][0]["accuracy_last"] == {"mean": 0.5, "deviation": None, "n": 1}
    assert found["rows"][0]["runs"][0]["folder"] == "a"
    assert found["rows"][1]["accuracy_last"] is None
    assert found["differing_settings"] == {"lr": [0.1, 0.2]}
    assert Path("page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none is not a folder; give the folders of runs, or a folder that holds them"),
        (["."], "no run in .: neither it nor a folder below it has a recipe.json"),
        ([".", "--html", "page.txt"], "page.txt: expected a file name that ends in .html"),
    ],
)
def test_mistakes_of_compare(here: Here, arguments: list[str], message: str) -> None:
    assert here("compare", *arguments) == (1, "", f"error: {message}\n")
