"""Parts on trial: their losses by hand, and that a trained network keeps nothing of them."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import recipes
from rheobase.deploy import fold
from rheobase.models import resnet8
from rheobase.train import fit
from rheobase.train.losses import steps
from rheobase.train.runs import load_network

RECIPE = recipes.get("demo").changed(["epochs=1", "batch_size=256", "timesteps=3"])


@pytest.fixture
def candidates() -> Any:
    """The module. Imported here, its parts are on the shelves of no other test."""
    return import_module("tools.candidates")


def test_the_least_confident_timestep_learns_from_the_most_confident_one(candidates: Any) -> None:
    # [T = 3, N = 1, K = 2]; with temperature 2, the logits are 0 and d / 2
    logits = torch.tensor([[[0.0, 1.0]], [[0.0, 0.2]], [[0.0, -3.0]]], requires_grad=True)
    labels = torch.tensor([1])
    loss = candidates.agreeing(logits, labels, RECIPE)
    most, least = torch.tensor([0.0, -1.5]).softmax(0), torch.tensor([0.0, 0.1]).softmax(0)
    expected = 4 * (most * (most / least).log()).sum()
    assert torch.allclose(loss - steps(logits, labels, RECIPE), expected)
    along = gradient(loss, logits) - gradient(steps(logits, labels, RECIPE), logits)
    assert torch.allclose(along[1, 0], 2 * (least - most))
    assert not along[0].any()
    assert not along[2].any()


def gradient(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of, retain_graph=True)[0]


@pytest.fixture
def branched(candidates: Any) -> Any:
    def build(num_classes: int, in_channels: int, image_size: int, **options: Any) -> Any:
        trunk = resnet8(num_classes, in_channels, image_size, **options)
        sides = {1: candidates.SideBranch(16, num_classes, 2), 2: candidates.SideBranch(32, num_classes, 1)}
        return candidates.Branched(trunk, sides)

    return build


@pytest.mark.parametrize("memory", ["speed", "packed"])
def test_side_branches_train_the_trunk_and_do_nothing_afterwards(
    candidates: Any, branched: Any, memory: str, tmp_path: Path
) -> None:
    recipe = RECIPE.changed([f"memory={memory}"])
    run = fit(recipe, network=branched, loss=candidates.branching, out=tmp_path / "run", device="cpu")
    network = load_network(run).eval()
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(network(images, timesteps=3), network.trunk(images, timesteps=3))
    assert not [name for name, _ in fold(network).named_modules() if "branch" in name]
    assert not candidates._side
    with pytest.warns(UserWarning, match=r"no gradient reaches .*: branches\."):  # that loss leaves them out
        plain = fit(recipe, network=branched, loss=steps, out=tmp_path / "plain", device="cpu")
    assert not torch.equal(load_network(plain).trunk.stem.weight, network.trunk.stem.weight)


def test_side_branches_learn_from_labels_and_from_the_network(candidates: Any, branched: Any) -> None:
    torch.manual_seed(0)
    network, labels = branched(10, 1, 8), torch.tensor([3, 1, 4])
    logits = network(torch.rand(3, 1, 8, 8), timesteps=2)
    sides = candidates._side["logits"]
    loss = candidates.branching(logits, labels, RECIPE)
    teacher = (logits.mean(0) / 3).softmax(1)
    for side in sides:
        loss = loss - torch.nn.functional.cross_entropy(side, labels, label_smoothing=RECIPE.label_smoothing)
        loss = loss - 2.7 * (teacher * (teacher.log() - (side / 3).log_softmax(1))).sum(1).mean()
    assert torch.allclose(loss, steps(logits, labels, RECIPE))
    loss = candidates.branching(network(torch.rand(3, 1, 8, 8), timesteps=2), labels, RECIPE)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in network.branches.parameters())
