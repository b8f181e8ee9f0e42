"""Every variant against its formula, written with the functions of the law."""

from functools import partial

import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.analysis.variants import VARIANTS, NeuNorm, NoNorm, StepNorm, UnitAlpha, UnscaledNorm
from rheobase.models import build
from rheobase.nn import Soma

T, N, C, V_TH, EPS = 3, 11, 5, 0.3, 1e-5
NEURON = {"decay": 0.25, "v_th": V_TH, "width": 0.6}


def branches(n: int) -> list[Tensor]:
    torch.manual_seed(4)
    scale = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).view(T, 1, 1, 1, 1)
    return [(0.2 + scale * torch.randn(T, N, C, 6, 7, dtype=torch.float64)).mul(0.4).requires_grad_() for _ in range(n)]


def trained(soma: Soma) -> Soma:
    """With weights and biases that are not the initial ones."""
    torch.manual_seed(6)
    soma = soma.double()
    with torch.no_grad():
        soma.weight.uniform_(0.5, 1.5)
        soma.bias.uniform_(-0.2, 0.2)
    return soma


def same(soma: Soma, xs: list[Tensor], current: Tensor) -> None:
    """Spikes, and gradients of inputs, weights and biases."""
    leaves = [*xs, soma.weight, soma.bias]
    law, own = functional.lif(current, **NEURON), soma(*xs)
    assert 0.05 < float(law.detach().mean()) < 0.6
    assert torch.equal(own, law)
    probe = torch.randn(law.shape, dtype=law.dtype, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(torch.autograd.grad(own, leaves, probe), torch.autograd.grad(law, leaves, probe))


def scaled(soma: Soma, xs: list[Tensor], alpha: float, v_th: float) -> Tensor:
    parts = []
    for x, weight, bias in zip(xs, soma.weight, soma.bias, strict=True):
        mean, var = functional.moments(x)
        parts.append(functional.tdbn(x, weight, bias, alpha=alpha, v_th=v_th, mean=mean, var=var, eps=EPS))
    return sum(parts[1:], start=parts[0])


@pytest.mark.parametrize(("kind", "v_th"), [(UnitAlpha, V_TH), (UnscaledNorm, 1.0)])
def test_other_scales(kind: type[Soma], v_th: float) -> None:
    soma, xs = trained(kind(C, 2, momentum=1.0, **NEURON)), branches(2)
    current = scaled(soma, xs, 1.0, v_th)
    same(soma, xs, current)
    assert torch.equal(soma.eval()(*xs), functional.lif(current, **NEURON))  # its running statistics are the batch's


def test_statistics_of_every_step() -> None:
    soma, xs = trained(StepNorm(C, 2, timesteps=T, momentum=1.0, **NEURON)), branches(2)
    current = torch.cat([scaled(soma, [x[t : t + 1] for x in xs], 2**-0.5, V_TH) for t in range(T)])
    same(soma, xs, current)
    one_step = functional.moments(xs[1][2:3])[0].detach()
    torch.testing.assert_close(soma.step_mean[2, 1], one_step)  # type: ignore[index]
    differ = soma.eval()(*xs) != functional.lif(current, **NEURON)
    assert float(differ.double().mean()) < 1e-3  # torch keeps the unbiased variance
    with pytest.raises(ValueError, match="at most 3"):
        soma(*(torch.cat([x, x]) for x in xs))


def test_no_normalisation_is_a_weighted_sum() -> None:
    soma, xs = trained(NoNorm(C, 2, **NEURON)), branches(2)
    shape = (C, 1, 1)
    current = sum(w.view(shape) * x + b.view(shape) for x, w, b in zip(xs, soma.weight, soma.bias, strict=True))
    same(soma, xs, current)


def test_neunorm_subtracts_the_slow_mean_by_hand() -> None:
    soma = NeuNorm(2, decay=0.0)
    x = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]])  # [T, N, C]: one of two neurons fires, then both
    slow = [0.1 * 0.5, 0.9 * 0.05 + 0.1 * 1.0]
    expected = torch.tensor([[[1 - slow[0], -slow[0]]], [[1 - slow[1], 1 - slow[1]]]])
    torch.testing.assert_close(soma(x), expected)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_every_variant_trains_and_evaluates(name: str, precision: torch.dtype | None) -> None:
    _, soma = VARIANTS[name]
    if soma is StepNorm:
        soma = partial(soma, timesteps=T)  # type: ignore[assignment]
    torch.manual_seed(0)
    network = build("resnet8", num_classes=3, soma=soma)
    with torch.autocast("cpu", precision, enabled=precision is not None):
        logits = network(torch.randn(5, 1, 8, 8), T)
    logits.sum().backward()
    assert network.stem.weight.grad is not None
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    assert network.eval()(torch.randn(5, 1, 8, 8), T).shape == (T, 5, 3)


@pytest.mark.filterwarnings("ignore:memory .* keeps its whole input")  # of NeuNorm, which is no longer binary
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("memory", ["packed", "recompute"])
def test_memory_modes_give_the_same_gradients(name: str, memory: str) -> None:
    results = []
    for mode in ("speed", memory):
        torch.manual_seed(9)
        network = build("resnet8", soma=VARIANTS[name][1], memory=mode).double()
        network(torch.randn(N, 1, 8, 8, dtype=torch.float64), T).square().sum().backward()
        results.append([parameter.grad for parameter in network.parameters()])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
