"""Bare neurons of a deployed network in one launch, against the same neurons step by step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import kernels
from rheobase.deploy.nodes import LIF, Left

N, C, H, W = 2, 17, 3, 5


def channels_last(x: Tensor) -> Tensor:
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])


def step_by_step(neurons: LIF, currents: list[Tensor], left: list[Left]) -> Tensor:
    total = sum(other.applied(x) for x, other in zip(currents, left, strict=True))
    v, spikes = neurons.rest(total[0]), []
    for current in total:
        s, v = neurons.step(current, v)
        spikes.append(s)
    return torch.stack(spikes)


def both(monkeypatch: pytest.MonkeyPatch, neurons: LIF, currents: list[Tensor], left: list[Left]) -> Tensor:
    """The spikes, which are the same by both ways."""
    monkeypatch.setattr(kernels, "integrates", lambda x: True)
    spikes = neurons(currents, len(currents[0]), left)
    assert 0.05 < spikes.double().mean() < 0.95
    assert torch.equal(spikes, step_by_step(neurons, currents, left))
    return spikes


def vector(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, C, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _on_its_device(triton_device: str) -> Any:
    with torch.device(triton_device):
        yield


@pytest.mark.parametrize("steps", [1, 4, 11])  # one step, one segment, two segments of which one is incomplete
@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["numbers", "vectors"])
@pytest.mark.parametrize("branches", [1, 2])
def test_equals_the_neurons_step_by_step(
    monkeypatch: pytest.MonkeyPatch, steps: int, reset: str, per_channel: bool, branches: int
) -> None:
    decay, initial = (vector(0, 1), vector(-0.5, 0.7)) if per_channel else (0.3, 0.2)
    neurons = LIF(decay, vector(-0.1, 0.8), reset=reset, initial=initial)
    currents = [channels_last(torch.randn(steps, N, C, H, W, dtype=torch.float64)) for _ in range(branches)]
    both(monkeypatch, neurons, currents, [Left()] * branches)
    left = [Left(vector(0.5, 2), vector(-0.3, 0.3)), Left(bias=vector(0.2, -0.4)), Left()][:branches]
    both(monkeypatch, neurons, currents, left)


@pytest.mark.parametrize("reset", ["hard", "soft"])
def test_integers_stay_exact(monkeypatch: pytest.MonkeyPatch, reset: str) -> None:
    """Potentials are quarters, thresholds lie between them, and often an input decides by a single quarter."""
    decay = (torch.arange(C) % 5).double() / 4
    neurons = LIF(decay, (torch.arange(C) % 7).double() / 4 + 0.125, 2, reset=reset)
    currents = [torch.randint(-2, 3, (7, N, C, H, W)).double() for _ in range(2)]
    both(
        monkeypatch, neurons, currents, [Left(), Left((torch.arange(C) % 3).double() - 1, torch.arange(C).double() % 2)]
    )


def test_other_memory_orders_and_linear_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    neurons = LIF(0.3, vector(0.1, 0.8))
    one, two = torch.randn(2, 4, N, C, H, W, dtype=torch.float64)
    left = [Left(), Left(vector(0.5, 2))]
    both(monkeypatch, neurons, [one, channels_last(two)], left)
    both(monkeypatch, neurons, [channels_last(one), two.transpose(-1, -2).contiguous().transpose(-1, -2)], left)
    both(monkeypatch, neurons, [one[..., 0, 0], two[..., 0, 0].clone()], left)


def test_a_held_current_and_many_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    neurons = LIF(0.3, vector(0.1, 0.8))
    held = torch.randn(1, N, C, H, W, dtype=torch.float64).expand(4, -1, -1, -1, -1)
    others = [torch.randn(4, N, C, H, W, dtype=torch.float64) for _ in range(3)]
    both(monkeypatch, neurons, [held], [Left()])
    both(monkeypatch, neurons, [others[0], held], [Left(vector(0.5, 2)), Left(bias=vector(-0.2, 0.2))])
    left = [Left(), Left(vector(0.5, 2)), Left(vector(1, -1), vector(-0.2, 0.2)), Left(bias=vector(0.1, 0))]
    both(monkeypatch, neurons, [held, *others], left)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_computed_in_single(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Multiples of 1/8 and powers of two throughout, so that no rounding is left to compare."""
    neurons = LIF(0.5, torch.full((C,), 0.5))
    x = (torch.randint(-8, 12, (4, N, C, H, W)) / 8).to(dtype)
    monkeypatch.setattr(kernels, "integrates", lambda x: True)
    spikes = neurons([x, x], 4, [Left(bias=torch.full((C,), 0.125)), Left(torch.full((C,), 0.5))])
    want = step_by_step(neurons, [x.float(), x.float()], [Left(bias=torch.tensor([0.125])), Left(torch.tensor([0.5]))])
    assert spikes.dtype == dtype
    assert torch.equal(spikes.float(), want)
    small = torch.full_like(x, 2.0**-12)  # lost beside 0.5 in half precision, but all of them are 0.5 + 3 * 2**-12
    spikes = neurons([torch.full_like(x, 0.5), small, small, small], 4)
    assert spikes.dtype == dtype
    assert spikes[0].all()


def test_who_integrates() -> None:
    on_cpu = torch.zeros(2, device="cpu")
    assert not kernels.integrates(on_cpu)
    if torch.cuda.is_available():
        x = torch.zeros(2, device="cuda")
        assert kernels.integrates(x)
        assert not kernels.integrates(x.requires_grad_())
        with torch.no_grad():
            assert kernels.integrates(x)


def test_the_operator_is_well_formed() -> None:
    xs = [torch.randn(4, N, C, H, W), channels_last(torch.randn(4, N, C, H, W))]
    vectors = ([None, torch.rand(C)], torch.rand(C), torch.rand(C), torch.rand(C), None)
    for order in (xs, xs[::-1]):
        torch.library.opcheck(torch.ops.rheobase.integrate, (order, *vectors, 0.0, "soft", None))
