"""What is measured is what the definitions say, and does not depend on how the batches are run."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rheobase import recipes
from rheobase.data import Dataset, load
from rheobase.data.dataset import Split
from rheobase.data.feed import Feed
from rheobase.deploy.folding import fold
from rheobase.deploy.quantize import quantize
from rheobase.models import resnet8
from rheobase.nn import ReluSoma, Soma, somas, watched
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


@pytest.mark.parametrize(("soma", "timesteps"), [(Soma, 2), (ReluSoma, 1)])
def test_loss_accuracy_and_rates_are_means_over_all_test_images(
    soma: type[Soma], timesteps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rheobase.data.feed.TEST_BATCH", BATCH)
    recipe, data = replace(RECIPE, timesteps=timesteps, loss="mean", label_smoothing=0.0), load("digits")
    model = resnet8(soma=soma).double()
    for _ in range(20):
        model.train()(torch.randn(5, 1, 8, 8, dtype=torch.float64), timesteps)
    found = evaluate(model, Feed(data, recipe, torch.device("cpu"), torch.float64), recipe)

    assert isinstance(data.test, Split)
    rates: dict[str, float] = {}
    with (
        torch.no_grad(),
        watched(model, somas(model), lambda name, out: rates.update({name: float((out != 0).double().mean())})),
    ):
        images = (data.test.images.double() - data.info.mean[0]) / data.info.std[0]
        outputs = model(images, timesteps).mean(0)
    assert found.loss == pytest.approx(float(cross_entropy(outputs, data.test.labels)), rel=1e-9)
    assert found.accuracy == float((outputs.argmax(1) == data.test.labels).double().mean())
    assert found.firing_rates == pytest.approx(rates, rel=1e-9)
    assert found.input_rates == {}


def test_input_rates_of_recordings_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheobase.data.feed.TEST_BATCH", 2)
    frames = torch.zeros(3, 4, 2, 8, 8, dtype=torch.uint8)  # N, T, C, H, W: 512 cells each
    frames[0, 1, 0, :4], frames[1, 2, 1], frames[2, 3, 0, 0, 0] = 1, 3, 1  # 32 ones; 64 others; 1 one
    split = Split(frames, torch.tensor([0, 1, 0]))
    data, recipe = Dataset.of("mine", split, split, ("a", "b")), replace(RECIPE, timesteps=4, batch_size=3)
    model = resnet8(num_classes=2, in_channels=2).double()
    found = evaluate(model, Feed(data, recipe, torch.device("cpu"), torch.float64), recipe)
    assert found.input_rates == pytest.approx({"one": 33 / (3 * 512), "other": 64 / (3 * 512)}, rel=1e-9)


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
    eager, captured = (evaluate(model, found, RECIPE, captured=captured) for captured in (False, True))
    assert captured.loss == pytest.approx(eager.loss, rel=1e-9)
    assert captured.firing_rates == pytest.approx(eager.firing_rates, rel=1e-9)
    assert replace(captured, loss=eager.loss, firing_rates=eager.firing_rates) == eager
    on_cpu = evaluate(model.cpu(), feed("cpu"), RECIPE)
    assert (on_cpu.accuracy, on_cpu.loss) == pytest.approx((eager.accuracy, eager.loss), rel=1e-9)
