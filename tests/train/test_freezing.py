"""A frozen body: it stays bit for bit what it was, whatever trains the head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rheobase import recipes, train
from rheobase.models import plain5, resnet8
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, plan, trainer
from rheobase.train.capture import CapturedStep, Step, capture
from rheobase.train.freezing import freeze, head_of, train_mode
from rheobase.train.runs import Run
from tests.train.test_distributed import assert_runs_agree, join, run_team
from tests.train.test_start import few_digits


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=2", "batch_size=128", "timesteps=2", "freeze=body", *settings])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train.fit(recipe("freeze=none", "epochs=3"), out=tmp_path_factory.mktemp("runs") / "trained", device="cpu")


def assert_body_stayed(run: Run, start: Run) -> None:
    own, theirs = run.trained().weights, start.trained().weights
    moved = {name for name in own if own[name].shape != theirs[name].shape or not torch.equal(own[name], theirs[name])}
    assert moved == {"head.decode.weight", "head.decode.bias"}


@pytest.mark.parametrize(
    "setting",
    ["average=0.9", "memory=packed", "memory=recompute", "precision=bf16", "precision=fp16", "optimizer=adamw"],
)
def test_the_head_alone_is_trained(trained: Run, tmp_path: Path, setting: str) -> None:
    chosen = recipe(setting)
    run = train.fit(chosen, start=trained, dataset=few_digits(), out=tmp_path / "run", device="cpu")
    assert_body_stayed(run, trained)
    rows = run.rows()
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["test_accuracy"] > 0.6  # of three classes
    state = run.trained().tensors["training"]
    kept = {name.split(".")[1] for name in state if name.startswith("optimizer.") and "group" not in name}
    assert kept == {"head"}, "no momentum for what does not move"


def test_memory_modes_train_the_same_head(trained: Run, tmp_path: Path) -> None:
    found = []
    for memory in ("speed", "packed", "recompute"):
        run = train.fit(recipe(f"memory={memory}", "epochs=1"), start=trained, out=tmp_path / memory, device="cpu")
        found.append(run.trained().weights["head.decode.weight"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


EXACT = ("precision=fp64", "epochs=1", "batch_size=512")


def member(rank: int, world: int, port: int, folder: Path, start: Path) -> None:
    join(rank, world, port)
    train.fit(recipe(*EXACT), start=start, out=folder, device="cpu")


def test_two_processes_train_the_same_head(trained: Run, tmp_path: Path) -> None:
    alone = train.fit(recipe(*EXACT), start=trained, out=tmp_path / "alone", device="cpu")
    run_team(member, 2, tmp_path / "team", trained.folder)
    assert_runs_agree(alone.folder, tmp_path / "team")


def test_a_body_needs_a_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="freeze=body needs a trained network to start from; add --from"):
        train.fit(recipe(), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_which_part_is_the_head() -> None:
    assert head_of(resnet8()) == "head"
    inner = nn.ModuleDict({"head": nn.Linear(2, 3), "tail": nn.Linear(3, 4)})
    assert head_of(nn.ModuleDict({"first": inner, "pool": nn.AvgPool2d(2)})) == "first.tail"
    with pytest.raises(ValueError, match="the network has no parameters"):
        head_of(nn.Flatten())


def test_neurons_of_the_head_go_on_learning() -> None:
    network = plain5()
    freeze(network, recipe())
    train_mode(network, recipe())
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {
        "head.hidden.weight", "head.soma.weight", "head.soma.bias", "head.decode.weight", "head.decode.bias",
    }  # fmt: skip
    assert network.head.soma.training
    assert not network.soma.training
    assert not network.body[0].soma.training
    train_mode(network, recipe("freeze=none"))
    assert network.body[0].soma.training


def test_plan_knows_that_less_is_kept() -> None:
    assert plan.tensor_bytes(recipe(), 256) < plan.tensor_bytes(recipe("freeze=none"), 256) / 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-9), ("bf16", 1e-2), ("fp16", 1e-2)])
def test_on_a_gpu_the_captured_step_is_the_eager_one(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float
) -> None:
    used: list[Step] = []

    def spy(step: Step, device: torch.device, *others: Any) -> Step:
        used.append(capture(step, device, *others))
        return used[-1]

    chosen = recipe(f"precision={precision}", "average=0.8", "batch_size=128")
    options: dict[str, Any] = {"start": trained, "device": "cuda", "dataset": few_digits()}
    monkeypatch.setattr(trainer, "capture", spy)
    captured = train.fit(chosen, out=tmp_path / "captured", **options)
    (step,) = used
    assert isinstance(step, CapturedStep)
    assert step.outputs, "it was never captured"
    assert_body_stayed(captured, trained)
    monkeypatch.setattr(trainer, "capture", lambda step, *others: step)
    eager = train.fit(chosen, out=tmp_path / "eager", **options)
    losses = [[row["loss"] for row in run.rows()] for run in (captured, eager)]
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    assert checkpoint.newest_step(captured.checkpoints) == len(captured.rows()) * captured.rows()[0]["step"]
