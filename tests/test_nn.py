"""Synapses fold T into the batch; the soma owns parameters, running statistics and the identity of its neuron."""

import copy
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rheobase.models import build
from rheobase.nn import AvgPool2d, Conv2d, Soma, hold, set_memory, watched

T, N, C, H, W = 3, 4, 5, 6, 8


@pytest.mark.parametrize(
    ("synapse", "plain"),
    [(Conv2d(C, 7, 3, 2, padding=1), nn.Conv2d(C, 7, 3, 2, padding=1)), (AvgPool2d(2), nn.AvgPool2d(2))],
)
def test_synapse_treats_every_step_alike(synapse: nn.Module, plain: nn.Module) -> None:
    plain.load_state_dict(synapse.state_dict())
    x = torch.randn(T, N, C, H, W)
    torch.testing.assert_close(synapse(x), torch.stack([plain(x_t) for x_t in x]))


def test_soma_starts_as_the_paper_says() -> None:
    soma = Soma(C, 2)
    assert (soma.decay, soma.v_th, soma.width) == (0.25, 0.5, 1.0)
    assert torch.equal(soma.weight, torch.ones(2, C))
    assert torch.equal(soma.bias, torch.zeros(2, C))
    assert [name for name, _ in soma.named_parameters()] == ["weight", "bias"]
    assert [name for name, _ in soma.named_buffers()] == ["running_mean", "running_var"]


def test_soma_keeps_nothing_between_calls() -> None:
    soma = Soma(C).eval()
    x = torch.randn(T, N, C, H, W)
    assert torch.equal(soma(x), soma(x))


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_running_statistics_move_once_per_training_forward(momentum: float) -> None:
    """After k forwards of one batch: (1 - (1-m)^k) * batch + (1-m)^k * start, with the biased variance."""
    soma = Soma(C, 2, momentum=momentum).double()
    xs = [torch.randn(1, 2, C, dtype=torch.float64) + b for b in (3, -1)]  # two values: biased is half of unbiased
    for k in (1, 2, 3):
        soma(*xs).sum().backward()
        kept = (1 - momentum) ** k
        for b, x in enumerate(xs):
            values = x[0]  # [2, C]
            mean = (values[0] + values[1]) / 2
            var = ((values[0] - values[1]) / 2) ** 2
            torch.testing.assert_close(soma.running_mean[b], (1 - kept) * mean)
            torch.testing.assert_close(soma.running_var[b], (1 - kept) * var + kept)


def test_evaluation_uses_the_running_statistics_and_leaves_them_alone() -> None:
    soma = Soma(C, decay=0.0).double().eval()
    soma.running_mean.fill_(10)
    soma.running_var.fill_(4)
    before = {name: value.clone() for name, value in soma.state_dict().items()}
    # v_th * (x - 10) / 2 > v_th from x = 12 on
    spikes = soma(torch.tensor([9.0, 11.9, 12.1, 20.0], dtype=torch.float64).view(1, 4, 1).expand(T, 4, C))
    assert torch.equal(spikes[0], torch.tensor([0, 0, 1, 1]).double()[:, None].expand(4, C))
    for name, value in soma.state_dict().items():
        assert torch.equal(value, before[name])


def test_half_precision_input_keeps_float32_statistics() -> None:
    soma = Soma(C, momentum=1.0)
    x = (torch.randn(T, N, C, H, W) + 100).bfloat16()
    spikes = soma(x)
    assert spikes.dtype == torch.bfloat16
    assert soma.running_mean.dtype == soma.running_var.dtype == torch.float32
    exact = x.double().transpose(0, 2).flatten(1)
    torch.testing.assert_close(soma.running_mean[0].double(), exact.mean(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(soma.running_var[0].double(), exact.var(1, correction=0), rtol=1e-4, atol=0)
    same = Soma(C)
    assert torch.equal(spikes.float(), same(x.float()))


@pytest.mark.parametrize(
    ("neuron", "difference"),
    [
        ({"decay": 0.5}, "decay 0.25 (here 0.5)"),
        ({"v_th": 1.0}, "v_th 0.5 (here 1)"),
        ({"width": 2.0}, "width 1 (here 2)"),
        ({"eps": 1e-3}, "eps 1e-05 (here 0.001)"),
        ({"branches": 2}, "branches 1 (here 2)"),
        ({"decay": 0.5, "v_th": 1.0}, "decay 0.25 (here 0.5), v_th 0.5 (here 1)"),
    ],
)
def test_checkpoint_of_another_neuron_is_refused(neuron: dict[str, float], difference: str) -> None:
    message = f"Soma: the checkpoint was trained with {difference}; build the network with that"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Soma(C, **neuron).load_state_dict(Soma(C).state_dict())


def test_checkpoint_of_the_same_neuron_is_taken(tmp_path: Path) -> None:
    trained, fresh = (Soma(C, 2, decay=0.5, v_th=0.3).double() for _ in range(2))
    xs = [torch.randn(T, N, C, H, W, dtype=torch.float64) for _ in range(2)]
    trained(*xs)
    with torch.no_grad():
        trained.weight += torch.rand(2, C)
    torch.save(trained.state_dict(), tmp_path / "soma.pt")
    fresh.load_state_dict(torch.load(tmp_path / "soma.pt", weights_only=True))
    assert torch.equal(fresh.eval()(*xs), trained.eval()(*xs))


def test_checkpoint_without_the_neuron_is_refused() -> None:
    weights = {name: value for name, value in Soma(C).state_dict().items() if name != "_extra_state"}
    with pytest.raises(RuntimeError, match="Missing key"):
        Soma(C).load_state_dict(weights)


def test_the_printed_soma_shows_its_neuron() -> None:
    assert "branches=2, decay=0.5, v_th=0.3, width=1.0" in repr(Soma(C, 2, decay=0.5, v_th=0.3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Soma(0), "Soma: expected at least one channel and branch, got 0 and 1"),
        (lambda: Soma(C, 0), f"Soma: expected at least one channel and branch, got {C} and 0"),
        (lambda: Soma(C, decay=1.5), "Soma: expected decay between 0 and 1, got 1.5"),
        (lambda: Soma(C, decay=float("nan")), "Soma: expected decay between 0 and 1, got nan"),
        (
            lambda: Soma(C, v_th=0.0),
            "Soma: expected v_th, width, eps > 0 and momentum in [0, 1], got 0.0, 1.0, 1e-05, 0.1",
        ),
        (
            lambda: Soma(C, width=-1.0),
            "Soma: expected v_th, width, eps > 0 and momentum in [0, 1], got 0.5, -1.0, 1e-05, 0.1",
        ),
    ],
)
def test_bad_settings(make: Callable[[], Soma], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(
    ("xs", "message"),
    [
        ([], "Soma: expected 2 branches, got 0"),
        ([torch.zeros(T, N, C)], "Soma: expected 2 branches, got 1"),
        ([torch.zeros(T, N, C)] * 3, "Soma: expected 2 branches, got 3"),
        (
            [torch.zeros(T, N, C), torch.zeros(T + 3, N, C)],
            f"fire: expected branches of one shape [T, N, C, ...], got [[{T}, {N}, {C}], [{T + 3}, {N}, {C}]]",
        ),
        ([torch.zeros(T, N, C + 2)] * 2, f"fire: expected {C} channels in dimension 2, got [{T}, {N}, {C + 2}]"),
        (
            [torch.zeros(T, N, C, 0, W)] * 2,
            f"fire: expected at least one element in every dimension, got [{T}, {N}, {C}, 0, {W}]",
        ),
        ([torch.zeros(T, N, C).long()] * 2, "fire: expected floating-point input, got torch.int64"),
        ([torch.zeros(N, C)] * 2, f"fire: expected branches of one shape [T, N, C, ...], got [[{N}, {C}], [{N}, {C}]]"),
    ],
)
def test_bad_input(xs: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Soma(C, 2)(*xs)


def test_pooling_of_what_is_held_for_all_steps() -> None:
    x = torch.randn(1, 2, 3, 6, 5, dtype=torch.float64, requires_grad=True)
    pooled = AvgPool2d(2)(hold(x, 4))
    weights = torch.randn_like(pooled)
    (expected,) = torch.autograd.grad((nn.AvgPool2d(2)(x[0])[None] * weights).sum(), x)
    (found,) = torch.autograd.grad((pooled * weights).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_window_larger_than_the_image_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="too small"):
        AvgPool2d(4)(torch.zeros(2, 1, 3, 3, 5))


def test_pooling_of_steps_that_overlap_in_memory() -> None:
    frames = torch.randn(T + 2, N, C, H, W, dtype=torch.float64, requires_grad=True)
    grads = []
    for pool in (AvgPool2d(2), lambda x: nn.functional.avg_pool2d(x.flatten(0, 2), 2).unflatten(0, x.shape[:3])):
        out = pool(frames.unfold(0, T, 1).movedim(-1, 0).flatten(1, 2))
        (grad,) = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), frames)
        grads.append(grad)
    torch.testing.assert_close(*grads)


def test_watching_sees_outputs_and_gives_every_part_its_mode_back() -> None:
    network, seen = build("resnet8").train(), []
    network.body[0].eval()
    modes = [module.training for module in network.modules()]
    with watched(network, {"first": network.soma}, lambda name, spikes: seen.append((name, spikes.shape))):
        assert not any(module.training for module in network.modules())
        network(torch.randn(3, 1, 8, 8), 2)
    assert [module.training for module in network.modules()] == modes
    network(torch.randn(3, 1, 8, 8), 2)
    assert seen == [("first", (2, 3, 16, 8, 8))]


def test_a_convolution_that_must_wait_for_a_soma_says_so() -> None:
    network = build("resnet8")
    set_memory(network, "packed")
    with pytest.raises(AttributeError, match="memory 'packed' must feed a Soma straight away"):
        network(torch.randn(3, 1, 8, 8), 2)


@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
@pytest.mark.parametrize("frozen", [True, False])
def test_higher_derivatives_are_refused(memory: str, frozen: bool) -> None:
    network = build("resnet8", memory=memory).requires_grad_(not frozen)
    x = torch.randn(3, 1, 8, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="know first derivatives only"):
        torch.autograd.grad(network(x, 2).sum(), x, create_graph=True)


def test_a_soma_of_a_process_group_can_be_copied() -> None:
    soma = Soma(C)
    soma.group = threading.Lock()  # cannot be copied, like a process group
    assert copy.deepcopy(soma).group is None
