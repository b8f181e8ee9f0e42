"""The captured step is the eager one."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rheobase import recipes
from rheobase.data.feed import Feed
from rheobase.functional import readout
from rheobase.models import resnet8
from rheobase.nn import ReluSoma
from rheobase.train.capture import CapturedStep, Step, capture, release
from rheobase.train.runs import load_data


def training(device: torch.device, timesteps: int = 3, **neuron: Any) -> tuple[torch.nn.Module, Step]:
    torch.manual_seed(3)
    network = resnet8(**neuron).to(device).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        optimizer.zero_grad()
        loss = cross_entropy(readout(network(images, timesteps)), labels)
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    return network, step


def test_the_graph_is_for_the_shapes_that_come_often() -> None:
    class Recorded(CapturedStep):
        """What would run on a GPU, by name."""

        def _run_aside(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return self.step("aside", *inputs)

        def _capture(self, inputs: tuple[Tensor, ...]) -> None:
            self.inputs, self.graph = tuple(x.clone() for x in inputs), SimpleNamespace(replay=lambda: None)
            done.append(("captured", len(inputs[0])))

    done: list[tuple[str, int]] = []

    def step(how: str | Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        done.append((how, len(inputs[0])) if isinstance(how, str) else ("eager", len(how)))
        return ()

    captured = Recorded(step)
    for size in (2, 64, 64, 64, 64, 2, 64):  # a run that was resumed at a last, short batch
        captured(torch.zeros(size))
    assert done == [("aside", 2), *[("aside", 64)] * 3, ("captured", 64), ("eager", 2)]


def test_a_number_is_a_constant_of_the_graph() -> None:
    eager: list[float] = []
    captured = CapturedStep(lambda _, share: eager.append(share) or (torch.zeros(()),))
    captured.inputs, captured.outputs = (torch.zeros(24), 24 / 48), (torch.ones(()),)
    captured.graph = SimpleNamespace(replay=lambda: None, reset=lambda: None)
    for n, share in ((24, 24 / 48), (24, 24 / 47), (23, 23 / 48), (24, 24 / 48)):
        captured(torch.full((n,), share), share)
    assert eager == [24 / 47, 23 / 48]
    assert (captured.inputs[0] == 0.5).all(), "tensors are copied into it"


def test_a_released_step_has_no_graph_and_runs_eagerly() -> None:
    done: list[str] = []
    captured = CapturedStep(lambda _: done.append("eager") or ())
    captured.inputs = (torch.zeros(2),)
    captured.graph = SimpleNamespace(replay=lambda: done.append("replayed"), reset=lambda: done.append("freed"))
    captured(torch.ones(2))
    release(captured)
    captured(torch.ones(2))
    release(captured.step)  # which was never captured
    assert done == ["replayed", "freed", "eager"]


@pytest.mark.parametrize("world", [2, 3])
def test_all_processes_replay_or_none(world: int) -> None:
    """A last batch can have as many images as the others in one process, and fewer in the next one."""
    settings = recipes.get("demo").changed(["batch_size=480"])
    data, cpu = load_data(settings, None), torch.device("cpu")
    feeds = [Feed(data, settings, cpu, torch.float32, rank, world) for rank in range(world)]
    steps = [[(len(labels), share) for _, labels, share in feed.training(0)] for feed in feeds]
    replays = [[step == own[0] for step in own] for own in steps]
    assert replays == [[True, True, False]] * world
    assert world == 2 or steps[2][0][0] == steps[2][-1][0], "one that could have replayed"


def test_a_result_stays_when_the_next_step_runs() -> None:
    steps = torch.zeros(())
    captured = CapturedStep(lambda _: ())
    captured.inputs, captured.outputs = (torch.zeros(2),), (steps,)
    captured.graph = SimpleNamespace(replay=lambda: steps.add_(1))
    assert [captured(torch.zeros(2)) for _ in range(3)] == [(1,), (2,), (3,)]


@pytest.fixture
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures without a GPU: the step runs, and its graph does nothing."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.usefixtures("_graphs")
def test_a_graph_leaves_the_first_inputs_alone() -> None:
    captured = CapturedStep(lambda x: (x + 1,), eager_calls=0)
    first = torch.zeros(2)
    for x in (first, torch.ones(2)):
        captured(x)
    assert captured.graph is not None
    assert torch.equal(first, torch.zeros(2))


@pytest.mark.usefixtures("_graphs")
def test_a_capture_that_failed_is_not_tried_again() -> None:
    def step(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (x + 1,)

    calls: list[int] = []
    captured = CapturedStep(step, eager_calls=0)
    with pytest.warns(UserWarning, match=r"cannot be captured as a CUDA graph \(operation not permitted"):
        captured(torch.zeros(()))
    assert captured(torch.zeros(())) == (1,)
    assert len(calls) == 3, "the capture and two eager steps"
    assert captured.graph is None


def test_elsewhere_it_is_the_step_itself() -> None:
    _, step = training(torch.device("cpu"))
    assert capture(step, torch.device("cpu")) is step


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sizes", [[6] * 6 + [5, 6], [6, 6, 6, 5, 6, 6, 5]])  # a smaller last batch runs eagerly
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"surrogate": "sigmoid", "reset": "soft", "learn_decay": "channel"},
        {"learn_decay": "layer", "reset_gradient": False},
        {"soma": ReluSoma, "timesteps": 1},
    ],
    ids=["paper", "channel", "layer", "relu"],
)
def test_every_call_is_one_step(options: dict[str, Any], sizes: list[int]) -> None:
    device = torch.device("cuda")
    eager_network, eager = training(device, **options)
    network, step = training(device, **options)
    captured = capture(step, device)
    assert isinstance(captured, CapturedStep)
    for size in sizes:
        images = torch.randn(size, 1, 8, 8, dtype=torch.float64, device=device)
        labels = torch.randint(10, (size,), device=device)
        (expected,), (loss,) = eager(images, labels), captured(images, labels)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    for own, other in zip(network.parameters(), eager_network.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)
