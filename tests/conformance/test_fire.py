"""`fire` and the soma against the same equations written one number at a time, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.nn import Soma
from tests.conformance import literal

N, C, H, W = 3, 4, 5, 8
NEURON = {"decay": 0.3, "v_th": 0.4, "width": 0.9, "eps": 1e-3}
VARIANTS = [
    {"surrogate": surrogate, "reset": reset, "reset_gradient": gradient}
    for surrogate in functional.SURROGATES
    for reset in functional.RESETS
    for gradient in (True, False)
]


def inputs(timesteps: int, branches: int) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    shape = (timesteps, N, C, H, W)
    xs = [torch.randn(shape, dtype=torch.float64) * (b + 1) + 2 * b - 1 for b in range(branches)]
    weight = torch.rand(branches, C, dtype=torch.float64) + 0.5
    bias = torch.randn(branches, C, dtype=torch.float64) / 5
    return xs, weight, bias, torch.randn(shape, dtype=torch.float64)


def nearby_moments(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Of another batch: near those of this one, so that neurons both fire and stay silent, but not equal."""
    means, variances = zip(*map(functional.moments, xs), strict=True)
    return torch.stack(means) + 0.3 * torch.rand(len(xs), C), torch.stack(variances) * (1 + torch.rand(len(xs), C))


def close(ours: Tensor | None, theirs: literal.Array) -> None:
    assert ours is not None
    torch.testing.assert_close(ours.detach(), torch.from_numpy(theirs), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("given_moments", [False, True])
@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("timesteps", [1, 2, 6, 7])
def test_fire_equals_the_literal_loop(timesteps: int, branches: int, given_moments: bool) -> None:
    xs, weight, bias, grad = inputs(timesteps, branches)
    moments = nearby_moments(xs) if given_moments else None
    expected = literal.fire(
        [x.numpy() for x in xs],
        weight.numpy(),
        bias.numpy(),
        grad.numpy(),
        moments=moments and (moments[0].numpy(), moments[1].numpy()),
        **NEURON,
    )
    leaves = [p.requires_grad_() for p in (*xs, weight, bias)]
    spikes, (mean, var) = functional.fire(xs, weight, bias, moments=moments, **NEURON)
    (spikes * grad).sum().backward()
    assert spikes.unique().tolist() == [0, 1]
    for ours, theirs in zip(
        (spikes, mean, var, *(leaf.grad for leaf in leaves)),
        (expected.spikes, expected.mean, expected.var, *expected.grad_xs, expected.grad_weight, expected.grad_bias),
        strict=True,
    ):
        close(ours, theirs)
    assert not mean.requires_grad
    assert not var.requires_grad


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("timesteps", [1, 2, 6, 7])
def test_soma_equals_the_literal_loop(timesteps: int, branches: int, training: bool) -> None:
    xs, weight, bias, grad = inputs(timesteps, branches)
    running_mean, running_var = nearby_moments(xs)
    soma = Soma(C, branches, momentum=1.0, **NEURON).double().train(training)
    soma.load_state_dict(
        {
            "weight": weight,
            "bias": bias,
            "running_mean": running_mean,
            "running_var": running_var,
            "_extra_state": soma.get_extra_state(),
        }
    )
    expected = literal.fire(
        [x.numpy() for x in xs],
        weight.numpy(),
        bias.numpy(),
        grad.numpy(),
        moments=None if training else (running_mean.numpy(), running_var.numpy()),
        **NEURON,
    )
    spikes = soma(*(x.requires_grad_() for x in xs))
    (spikes * grad).sum().backward()
    close(spikes, expected.spikes)
    close(soma.running_mean, expected.mean)
    close(soma.running_var, expected.var)
    for x, grad_x in zip(xs, expected.grad_xs, strict=True):
        close(x.grad, grad_x)
    close(soma.weight.grad, expected.grad_weight)
    close(soma.bias.grad, expected.grad_bias)


@pytest.mark.parametrize("learn_decay", ["none", "layer", "channel"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
@pytest.mark.parametrize("of", ["law", "soma"])
def test_every_neuron_equals_the_literal_loop(of: str, variant: dict[str, Any], learn_decay: str) -> None:
    """The gradient of a learnt decay goes on through the sigmoid: times decay * (1 - decay)."""
    xs, weight, bias, grad = inputs(6, 2)
    decay = {"none": 0.3, "layer": [0.3] * C, "channel": [0.1, 0.35, 0.6, 0.85]}[learn_decay]
    neuron = NEURON | variant | {"decay": decay}
    expected = literal.fire([x.numpy() for x in xs], weight.numpy(), bias.numpy(), grad.numpy(), **neuron)
    leaves = [p.requires_grad_() for p in (*xs, weight, bias)]
    soma = Soma(C, 2, learn_decay=learn_decay, **NEURON | variant).double()
    if learn_decay == "channel":
        with torch.no_grad():
            soma.decay_logit.copy_(torch.tensor(decay, dtype=torch.float64).logit())
    elif learn_decay == "layer":
        with torch.no_grad():
            soma.decay_logit.copy_(torch.tensor([0.3], dtype=torch.float64).logit())
    if of == "law":
        now = soma.present_decay()
        spikes, _ = functional.fire(xs, weight, bias, **NEURON | variant | {"decay": now})
    else:
        del soma.weight, soma.bias
        soma.weight, soma.bias = weight, bias
        spikes = soma(*xs)
    (spikes * grad).sum().backward()
    assert spikes.unique().tolist() == [0, 1]
    close(spikes, expected.spikes)
    for leaf, theirs in zip(leaves, (*expected.grad_xs, expected.grad_weight, expected.grad_bias), strict=True):
        close(leaf.grad, theirs)
    if learn_decay != "none":
        through = expected.grad_decay * [k * (1 - k) for k in decay]
        assert abs(through).min() > 1e-4
        close(soma.decay_logit.grad, through if learn_decay == "channel" else through.sum(keepdims=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Same rounded inputs, so the same spikes; only what leaves the operation is rounded."""
    xs, weight, bias, _ = inputs(6, 2)
    halves = [x.to(dtype) for x in xs]
    spikes, (mean, var) = functional.fire(halves, weight.float(), bias.float(), **NEURON)
    wide, (wide_mean, wide_var) = functional.fire([x.float() for x in halves], weight.float(), bias.float(), **NEURON)
    assert spikes.dtype == dtype
    assert mean.dtype == var.dtype == torch.float32
    assert torch.equal(spikes.float(), wide)
    assert torch.equal(mean, wide_mean)
    assert torch.equal(var, wide_var)
