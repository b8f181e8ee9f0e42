"""The soma owns parameters, running statistics and the identity of its neuron."""

import copy
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.models import build
from rheobase.nn import Conv2d, ReferenceSoma, Soma, set_memory, somas, watched

T, N, C, H, W = 3, 4, 5, 6, 8


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


@pytest.mark.parametrize("kind", [Soma, ReferenceSoma])
@pytest.mark.parametrize("branches", [1, 2])
def test_without_normalisation_neurons_receive_the_plain_sum(kind: type[Soma], branches: int) -> None:
    soma = kind(C, branches, normalize=False, decay=0.3, v_th=0.7, eps=0.1).double()
    xs = [torch.randn(T, N, C, H, W, dtype=torch.float64).requires_grad_() for _ in range(branches)]
    expected = functional.lif(sum(xs[1:], start=xs[0]), decay=0.3, v_th=0.7, width=1.0)
    found, upstream = soma(*xs), torch.randn_like(expected)
    assert torch.equal(found, expected)
    for own, law in zip(*(torch.autograd.grad(out, xs, upstream) for out in (found, expected)), strict=True):
        torch.testing.assert_close(own, law, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["fire", "spike"])
def test_a_method_that_the_kernels_do_not_call_cannot_be_overridden(method: str) -> None:
    with pytest.raises(ValueError, match="Own: the kernels of Soma do not call fire or spike"):
        type("Own", (Soma,), {method: lambda self, x: x})


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
        ({"surrogate": "atan"}, "surrogate rectangle (here atan)"),
        ({"reset": "soft", "reset_gradient": False}, "reset hard (here soft), reset_gradient True (here False)"),
        ({"decay": 0.5, "v_th": 1.0}, "decay 0.25 (here 0.5), v_th 0.5 (here 1)"),
    ],
)
def test_checkpoint_of_another_neuron_is_refused(neuron: dict[str, float], difference: str) -> None:
    message = f"Soma: the checkpoint was trained with {difference}; build the network with these settings"
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


def test_a_checkpoint_from_before_there_was_a_choice_is_of_the_papers_neuron() -> None:
    state = Soma(C).state_dict()
    state["_extra_state"] = torch.tensor([0.25, 0.5, 1.0, 1e-5, 1], dtype=torch.float64)
    Soma(C).load_state_dict(state)
    with pytest.raises(ValueError, match=r"trained with surrogate rectangle \(here triangle\); build"):
        Soma(C, surrogate="triangle").load_state_dict(state)


@pytest.mark.parametrize("learn_decay", ["layer", "channel"])
def test_a_learnt_decay_starts_where_it_is_told_and_survives_a_checkpoint(learn_decay: str) -> None:
    soma, other = (Soma(C, decay=0.3, learn_decay=learn_decay) for _ in range(2))
    assert [name for name, _ in soma.named_parameters()] == ["weight", "bias", "decay_logit"]
    torch.testing.assert_close(soma.present_decay(), torch.full((C if learn_decay == "channel" else 1,), 0.3))
    with torch.no_grad():
        soma.decay_logit += torch.linspace(-300, 300, len(soma.decay_logit))
    assert ((soma.present_decay() >= 0) & (soma.present_decay() <= 1)).all()
    other.load_state_dict(soma.state_dict())
    assert torch.equal(other.present_decay(), soma.present_decay())
    with pytest.raises(ValueError, match=f"trained with learn_decay {learn_decay} .here none.; build the network"):
        Soma(C, decay=0.3).load_state_dict(soma.state_dict())


def test_a_learnt_decay_learns() -> None:
    """Neurons that should fire at their second step, which they do only if the first is remembered."""
    soma = Soma(2, decay=0.25, learn_decay="channel", surrogate="sigmoid").eval()
    x = torch.full((2, 4, 2), 0.78)  # u = 0.39, then 0.39 (1 + decay)
    optimizer = torch.optim.SGD([soma.decay_logit], lr=1.0)
    assert not soma(x).any()
    for _ in range(20):
        optimizer.zero_grad()
        (-soma(x)[1, :, 0]).sum().backward()  # the second channel is not asked
        optimizer.step()
    assert soma(x)[1].mean(0).tolist() == [1, 0]
    assert soma.present_decay()[1].item() == pytest.approx(0.25)


def test_the_printed_soma_shows_its_neuron() -> None:
    assert "surrogate=atan, reset=soft" in repr(Soma(C, surrogate="atan", reset="soft"))
    assert "branches=2, normalize=True, decay=0.5, v_th=0.3, width=1.0" in repr(Soma(C, 2, decay=0.5, v_th=0.3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Soma(0), "Soma: expected at least one channel and branch, got 0 and 1"),
        (lambda: Soma(C, 0), f"Soma: expected at least one channel and branch, got {C} and 0"),
        (lambda: Soma(C, decay=1.5), "Soma: expected decay between 0 and 1, got 1.5"),
        (lambda: Soma(C, decay=float("nan")), "Soma: expected decay between 0 and 1, got nan"),
        (
            lambda: Soma(C, decay=1.0, learn_decay="layer"),
            "Soma: a learnt decay must start between 0 and 1, both excluded, got 1.0",
        ),
        (
            lambda: Soma(C, surrogate="step"),
            "unknown surrogate 'step'; choose one of rectangle, triangle, sigmoid, atan",
        ),
        (lambda: Soma(C, reset="mild"), "unknown reset 'mild'; choose one of hard, soft"),
        (lambda: Soma(C, learn_decay="yes"), "unknown learn_decay 'yes'; choose one of none, layer, channel"),
        (
            lambda: Soma(C, v_th=0.0),
            "Soma: expected v_th, eps > 0 and momentum in [0, 1], got 0.0, 1e-05, 0.1",
        ),
        (
            lambda: Soma(C, width=-1.0),
            "Soma: expected width > 0, got -1.0",
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


@pytest.mark.parametrize("name", ["decay", "v_th", "width"])
@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
def test_a_setting_that_is_a_tensor_gets_the_gradient_of_the_law(name: str, memory: str) -> None:
    conv, x = Conv2d(C, 7, 3, bias=False).double(), torch.randn(T, N, C, H, W, dtype=torch.float64)
    set_memory(conv, memory)
    neuron = {"decay": 0.3, "v_th": 0.6, "width": 0.9}
    results = []
    for fire in (Soma(7, **neuron).double(), None):
        setting = nn.Parameter(torch.tensor(neuron[name], dtype=torch.float64))
        if fire is None:
            spikes, _ = functional.fire(
                [conv.convolve(x)], torch.ones(1, 7), torch.zeros(1, 7), **neuron | {name: setting}, eps=1e-5
            )
        else:
            setattr(fire, name, setting)
            spikes = fire(conv(x))
        spikes.backward(torch.linspace(-1, 2, spikes.numel(), dtype=torch.float64).view_as(spikes))
        results.append((spikes, setting.grad, conv.weight.grad))
        conv.weight.grad = None
    (own, grad, weights), (law, law_grad, law_weights) = results
    assert torch.equal(own, law)
    assert 0 < own.mean() < 1
    torch.testing.assert_close(weights, law_weights, rtol=1e-9, atol=1e-9)
    if name == "width":  # of the surrogate, which the law does not differentiate
        assert grad is law_grad is None
    else:
        assert law_grad.abs() > 1e-3
        torch.testing.assert_close(grad, law_grad, rtol=1e-9, atol=1e-9)


def test_a_setting_that_is_a_tensor_survives_a_checkpoint() -> None:
    soma, other = Soma(C), Soma(C)
    soma.decay, other.decay = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(0.4))
    other.load_state_dict(soma.state_dict())
    assert other.decay == soma.decay


def test_a_setting_that_is_a_tensor_is_refused_in_a_process_group() -> None:
    soma = Soma(C)
    soma.v_th, soma.group = nn.Parameter(torch.tensor(0.3)), "any"
    message = "a process group needs the neuron's settings as numbers, but v_th came as a tensor"
    with pytest.raises(ValueError, match=f"^{message}$"):
        soma(torch.randn(T, N, C))


def test_somas_by_name() -> None:
    network = build("resnet8")
    names = ["soma", *(f"body.{i}.soma{k}" for i in range(3) for k in (1, 2))]
    assert list(somas(network)) == names
    assert all(soma is network.get_submodule(name) for name, soma in somas(network).items())


def reference(soma: Soma) -> ReferenceSoma:
    twin = ReferenceSoma(soma.channels, soma.branches, **soma.settings)
    twin.to(soma.weight.dtype).load_state_dict(soma.state_dict())
    return twin.train(soma.training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "choices",
    [{}, {"surrogate": "atan", "reset": "soft", "learn_decay": "channel"}, {"learn_decay": "layer"}],
    ids=["paper", "other", "learnt"],
)
def test_a_reference_soma_equals_the_kernels(choices: dict[str, str], training: bool) -> None:
    soma = Soma(C, 2, decay=0.4, v_th=0.7, width=0.8, **choices).double().train(training)
    nn.init.uniform_(soma.weight, 0.5, 2)
    nn.init.uniform_(soma.running_var, 0.5, 2)
    results = []
    for layer in (soma, reference(soma)):
        torch.manual_seed(3)
        xs = [torch.randn(T, N, C, H, W, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        spikes = layer(*xs)
        spikes.backward(torch.randn_like(spikes))
        results.append([spikes, *(x.grad for x in xs), *(p.grad for p in layer.parameters()), *layer.buffers()])
    assert 0 < results[0][0].mean() < 1
    for own, law in zip(*results, strict=True):
        torch.testing.assert_close(law, own, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_reference_soma_of_half_precision_is_the_law(dtype: torch.dtype) -> None:
    x, soma = torch.randn(T, N, C, H, W).to(dtype), ReferenceSoma(C, 2)
    spikes = soma(x, x.flip(0))
    law, (mean, _) = functional.fire([x, x.flip(0)], soma.weight, soma.bias, decay=0.25, v_th=0.5, width=1.0, eps=1e-5)
    assert spikes.dtype == dtype
    assert torch.equal(spikes, law)
    torch.testing.assert_close(soma.running_mean, 0.1 * mean)
    assert soma.running_mean.dtype == torch.float32


@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
def test_a_reference_soma_under_autocast(memory: str) -> None:
    conv, soma = Conv2d(C, 7, 3, bias=False), ReferenceSoma(7)
    set_memory(conv, memory)
    with torch.autocast("cpu", torch.bfloat16):
        spikes = soma(conv(torch.randn(T, N, C, H, W)))
    assert spikes.dtype == torch.bfloat16
    spikes.sum().backward()
    assert conv.weight.grad is not None
    assert conv.weight.grad.any()


class Integrator(ReferenceSoma):
    """Neither leak nor reset."""

    def fire(self, current: Tensor) -> Tensor:
        return functional.spike(current.cumsum(0), v_th=self.v_th, width=self.width)


@pytest.mark.parametrize("memory", ["speed", "packed"])
def test_a_neuron_of_ones_own_in_a_network(memory: str) -> None:
    network = build("resnet8", soma=Integrator, v_th=0.6).double()
    set_memory(network, memory)
    network(torch.randn(N, 1, 8, 8, dtype=torch.float64), T).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert network.stem.weight.grad.any()
    assert network.soma.running_mean.any()
    x = torch.randn(T, N, C, dtype=torch.float64)
    soma = Integrator(C, v_th=0.6).double()
    u = torch.stack([soma.current(x)[: t + 1].sum(0) for t in range(T)])
    assert torch.equal(soma(x), (u > 0.6).double())


@pytest.mark.parametrize(
    ("xs", "message"),
    [
        ([torch.zeros(T, N, C)], "ReferenceSoma: expected 2 branches, got 1"),
        ([torch.zeros(T, N, C + 2)] * 2, f"fire: expected {C} channels in dimension 2, got [{T}, {N}, {C + 2}]"),
    ],
)
def test_bad_input_of_a_reference_soma(xs: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ReferenceSoma(C, 2)(*xs)
