"""Whole runs on the embedded digits: learning, evaluating, and the options of a recipe."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rheobase import recipes, train
from rheobase.models import resnet8
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import trainer
from rheobase.train.capture import CapturedStep, Step, capture
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.runs import Run, load_network
from tests.train.short_runs import StopAt, assert_identical, final, recipe

pytestmark = pytest.mark.usefixtures("one_thread")

GOLDEN = Path(__file__).parents[1] / "golden" / "demo_losses.txt"


def test_a_run_folder_tells_everything(whole: Path) -> None:
    run = Run(whole)
    assert run.recipe == recipe()
    record = run.read("environment.json")["record"]
    assert record["packages"]["torch"] == torch.__version__
    assert record["seed"] == recipe().seed
    rows = run.rows()
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 6), (2, 12), (3, 18)]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[0]["lr"] > rows[-1]["lr"] > 0
    assert rows[-1]["gradient_norm"] > 0
    assert rows[0]["elapsed"] < rows[1]["elapsed"] < rows[2]["elapsed"]
    assert sum(row["seconds"] for row in rows) < rows[-1]["elapsed"]


def test_a_device_may_be_given_as_torch_names_it() -> None:
    assert train.choose_device(torch.device("cpu")) == torch.device("cpu")
    for unknown in (torch.device("cuda:77"), 77, None):
        with pytest.raises(ValueError, match=r"device '.*' is not available here; use auto or cpu"):
            train.choose_device(unknown)


def test_the_same_seed_gives_the_same_run_and_another_one_another(whole: Path, tmp_path: Path) -> None:
    train.fit(recipe(), out=tmp_path / "again", device="cpu")
    assert_identical(whole, tmp_path / "again")
    train.fit(recipe("seed=1", "epochs=1"), out=tmp_path / "other", device="cpu")
    assert not torch.equal(final(whole)["weights.stem.weight"], final(tmp_path / "other")["weights.stem.weight"])


def test_eval_repeats_the_last_row(whole: Path) -> None:
    found, last = evaluate_run(whole, device="cpu"), Run(whole).rows()[-1]
    assert (found.accuracy, found.loss) == (last["test_accuracy"], last["test_loss"])
    assert found.firing_rates == last["firing_rates"]
    assert evaluate_run(whole, timesteps=3, device="cpu").firing_rates != found.firing_rates


def test_load_network_is_ready_for_inference(whole: Path) -> None:
    network = load_network(Run(whole))
    assert not network.training
    assert torch.equal(network.stem.weight, final(whole)["weights.stem.weight"])


def test_a_run_with_a_short_beginning_is_evaluated_at_any_timesteps(tmp_path: Path) -> None:
    train.fit(recipe("epochs=1", "timesteps=3", "short_timesteps=2", "short_epochs=1"), out=tmp_path, device="cpu")
    assert evaluate_run(tmp_path, timesteps=1, device="cpu").accuracy > 0


def test_elapsed_counts_every_second_once(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(8))
    train.fit(recipe(), out=tmp_path, resume=True, device="cpu")
    rows = Run(tmp_path).rows()
    spent = sum(row["seconds"] for row in rows)
    assert spent < rows[-1]["elapsed"] < process_seconds() - Run(whole).rows()[-1]["seconds"]
    assert [row["elapsed"] for row in rows] == sorted(row["elapsed"] for row in rows)


def test_elapsed_begins_when_it_is_told(tmp_path: Path) -> None:
    before = process_seconds()
    rows = train.fit(recipe("epochs=1"), out=tmp_path / "run", device="cpu", began=0.0).rows()
    assert rows[-1]["elapsed"] > before


def test_ctrl_c_is_ours_only_while_training(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    train.fit(recipe("epochs=1"), out=tmp_path / "main", device="cpu")
    assert signal.getsignal(signal.SIGINT) is before
    thread = threading.Thread(target=train.fit, args=[recipe("epochs=1")], kwargs={"out": tmp_path / "thread"})
    thread.start()
    thread.join()
    assert len(Run(tmp_path / "thread").rows()) == 1


def test_the_name_of_a_recipe_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^fit: expected a recipe, such as recipes\.get\('demo'\), got 'demo'$"):
        train.fit("demo", out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no recipe\.json"):
        evaluate_run(tmp_path)


def test_an_empty_run_has_nothing_to_evaluate(tmp_path: Path, whole: Path) -> None:
    for name in ("recipe.json", "data.json"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(ValueError, match="has no checkpoint: no epoch was finished"):
        evaluate_run(tmp_path)


def test_a_short_beginning_and_rare_evaluation(tmp_path: Path) -> None:
    def network(**options: Any) -> nn.Module:
        made = resnet8(**options)
        made.head.register_forward_hook(lambda _, __, logits: trained.append(len(logits)) if made.training else None)
        return made

    settings, trained = ("timesteps=3", "short_timesteps=1", "short_epochs=2", "evaluate_every=2"), list[int]()
    rows = train.fit(recipe(*settings), network=network, out=tmp_path / "run", device="cpu").rows()
    assert [row["timesteps"] for row in rows] == [1, 1, 3]
    assert trained == [*[1] * 12, *[3] * 6]
    assert ["test_accuracy" in row for row in rows] == [False, True, True]


@pytest.mark.parametrize("setting", ["memory=packed", "memory=recompute", "precision=bf16", "loss=steps"])
def test_options_reach_the_network(tmp_path: Path, setting: str) -> None:
    rows = train.fit(recipe(setting, "epochs=2"), out=tmp_path / "run", device="cpu").rows()
    assert rows[-1]["loss"] < rows[0]["loss"]


class Losses(Reporter):
    def __init__(self) -> None:
        self.values: list[float] = []

    def due(self) -> bool:
        return True

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        self.values.append(loss)  # the mean over the epoch so far


def test_golden_losses_of_the_demo_in_float64(tmp_path: Path) -> None:
    losses = Losses()
    train.fit(recipes.get("demo").changed(["precision=fp64", "epochs=1"]), out=tmp_path / "run", reporter=losses)
    if os.environ.get("RHEOBASE_WRITE_GOLDEN"):
        GOLDEN.write_text("".join(f"{i} {loss!r}\n" for i, loss in enumerate(losses.values[:20], 1)))
    golden = [float(line.split()[1]) for line in GOLDEN.read_text().splitlines()]
    assert len(golden) == 20
    assert losses.values[:20] == pytest.approx(golden, rel=1e-9)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-9), ("bf16", 1e-2), ("fp16", 1e-2)])
def test_on_a_gpu_the_captured_step_is_the_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float
) -> None:
    used: list[Step] = []

    def spy(step: Step, device: torch.device, *others: Any) -> Step:
        used.append(capture(step, device, *others))
        return used[-1]

    settings = recipe(f"precision={precision}", "average=0.8", "epochs=2", "batch_size=64")
    monkeypatch.setattr(trainer, "capture", spy)
    captured = train.fit(settings, out=tmp_path / "captured", device="cuda").rows()
    (step,) = used
    assert isinstance(step, CapturedStep)
    assert step.outputs, "it was never captured"
    monkeypatch.setattr(trainer, "capture", lambda step, *others: step)
    eager = train.fit(settings, out=tmp_path / "eager", device="cuda").rows()
    assert eager[1]["loss"] < 0.95 * eager[0]["loss"], "too little happens to see a difference"
    assert [row["loss"] for row in captured] == pytest.approx([row["loss"] for row in eager], rel=tolerance)
