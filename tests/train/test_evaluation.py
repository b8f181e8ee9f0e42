"""What is measured does not depend on how the batches are run."""

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import recipes
from rheobase.data import load
from rheobase.data.feed import Feed
from rheobase.deploy.folding import fold
from rheobase.deploy.quantize import quantize
from rheobase.models import resnet8
from rheobase.train import evaluate, evaluation
from rheobase.train.capture import Step

BATCH = 50  # several of the test images, and a smaller one at the end
RECIPE = recipes.get("demo").changed(["timesteps=2", "precision=fp64"])


def feed(device: str) -> Feed:
    return Feed(load("digits"), RECIPE, torch.device(device), torch.float64)


def network(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = resnet8().double()
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    for _ in range(20):
        model.train()(x, 2)
    if kind == "as trained":
        return model.eval()
    folded = fold(model.eval())
    return folded if kind == "folded" else quantize(folded, x, 2)


class Replayed:
    """A step that, like a graph, sees its inputs in memory that it holds, and runs again without being asked more."""

    def __init__(self, step: Step, device: torch.device, *, eager_calls: int) -> None:
        self.step, self.eager = step, eager_calls
        self.held: tuple[Tensor, ...] = ()
        self.replays = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.eager or len(inputs[0]) != BATCH:
            self.eager = max(0, self.eager - 1)
            return self.step(*inputs)
        self.held = self.held or tuple(x.clone() for x in inputs)
        for held, x in zip(self.held, inputs, strict=True):
            held.copy_(x)
        self.replays += 1
        return self.step(*self.held)


def test_a_batch_is_a_function_of_its_inputs_and_adds_to_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = network("as trained"), feed("cpu")
    monkeypatch.setattr("rheobase.data.feed.TEST_BATCH", BATCH)
    expected = evaluate(model, found, RECIPE)
    made: list[Any] = []

    def capture(*arguments: Any, **options: Any) -> Replayed:
        made.append(Replayed(*arguments, **options))
        return made[0]

    monkeypatch.setattr(evaluation, "capture", capture)
    assert evaluate(model, found, RECIPE, captured=True) == expected
    assert expected.images == len(found.test)
    assert made[0].replays == len(found.test) // BATCH - 1 > 1
    assert len(found.test) % BATCH
    assert all(0 < rate < 1 for rate in expected.firing_rates.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["as trained", "folded", "int8"])
def test_a_captured_evaluation_is_the_eager_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheobase.data.feed.TEST_BATCH", BATCH)
    model, found = network(kind).cuda(), feed("cuda")
    eager, captured = (asdict(evaluate(model, found, RECIPE, captured=captured)) for captured in (False, True))
    rates = eager.pop("firing_rates"), captured.pop("firing_rates")
    assert captured == pytest.approx(eager, rel=1e-9)
    assert rates[1] == pytest.approx(rates[0], rel=1e-9)
    on_cpu = evaluate(model.cpu(), feed("cpu"), RECIPE)
    assert (on_cpu.accuracy, on_cpu.loss) == pytest.approx((eager["accuracy"], eager["loss"]), rel=1e-9)
