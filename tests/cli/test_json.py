"""Documents for other programs: the same as for readers, alone on the output, and strict JSON."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase import recipes
from rheobase.cli.common import print_json
from rheobase.data import load
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.cli.here import Here
from tests.deploy.networks import randomise

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def run(here: Here) -> Run:
    recipe = recipes.get("demo").changed(["timesteps=2"])
    run = Run.create(here.folder / "run", recipe, load("digits").info, torch.device("cpu"))
    checkpoint.save(run.checkpoints, 1, {"weights": randomise(run.network(), 8).float().state_dict()}, {})
    return run


def test_eval_as_json(here: Here, run: Run) -> None:
    code, output, messages = here("eval", "run", "--device", "cpu", "--json")
    assert (code, messages) == (0, "")
    assert json.loads(output) == {"network": "run", **asdict(evaluate_run(run, device="cpu"))}


@pytest.mark.filterwarnings("default")
def test_warnings_are_not_in_the_document(here: Here, run: Run) -> None:
    record = run.read("data.json") | {"fingerprint": "another"}
    (run.folder / "data.json").write_text(json.dumps(record))
    code, output, messages = here("eval", "run", "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(output)["network"] == "run"
    assert messages.startswith("warning: these data are not the ones")


@pytest.mark.usefixtures("run")
def test_predict_as_json(here: Here) -> None:
    for i in range(2):
        np.save(f"{i}.npy", load("digits").test.images[i].numpy())
    Path("bad.npy").write_bytes(b"no array")
    code, output, messages = here("predict", "run", "0.npy", "bad.npy", "1.npy", "--top", "2", "--json")
    assert code == 1
    assert messages == "error: 1 of 3 files could not be read\n"
    found = json.loads(output)
    assert [seen["file"] for seen in found["images"]] == ["0.npy", "1.npy"]
    assert [left["file"] for left in found["left_out"]] == ["bad.npy"]
    assert "bad.npy" in found["left_out"][0]["reason"]
    _, text, _ = here("predict", "run", "0.npy", "1.npy", "--top", "2")
    for line, seen in zip(text.splitlines(), found["images"], strict=True):
        classes = ", ".join(f"{c['class']} {100 * c['probability']:.1f} %" for c in seen["classes"])
        assert line == f"{seen['file']}: {classes}"


@pytest.mark.usefixtures("run")
def test_a_single_image_that_cannot_be_read(here: Here) -> None:
    Path("bad.npy").write_bytes(b"no array")
    code, output, messages = here("predict", "run", "bad.npy", "--json")
    assert (code, output) == (1, "")
    assert messages.startswith("error: ")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("eval", "eval run"),
        ("predict", "predict run 0.npy"),
        ("compare", "compare run"),
        ("plan", "plan demo --gpus 2"),
        ("recipes", "recipes"),
        ("recipes NAME", "recipes demo"),
        ("models", "models"),
    ],
)
def test_the_documents_name_every_key(here: Here, command: str, arguments: str) -> None:
    np.save("0.npy", load("digits").test.images[0].numpy())
    (row,) = re.findall(rf"^\| `{command}` \|.*", (DOCS / "training.md").read_text(), re.MULTILINE)
    assert [key for key in json.loads(here(*arguments.split(), "--json")[1]) if f"`{key}`" not in row] == []


def test_what_is_no_number_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": float("nan"), "rates": [0.5, float("inf")]})
    assert json.loads(capsys.readouterr().out) == {"loss": None, "rates": [0.5, None]}
