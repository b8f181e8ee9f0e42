"""Threshold-dependent batch normalisation (Eq. 5-8), by closed forms."""

from collections.abc import Callable
from math import erfc, sqrt

import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.nn import Soma

T, N, C, H, W = 3, 4, 5, 6, 7
EPS = 1e-5


def normalised(x: Tensor, *, alpha: float, v_th: float) -> Tensor:
    mean, var = functional.moments(x)
    ones, zeros = torch.ones_like(mean), torch.zeros_like(mean)
    return functional.tdbn(x, ones, zeros, alpha=alpha, v_th=v_th, mean=mean, var=var, eps=EPS)


INPUTS: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: torch.randn(T, N, C, H, W, dtype=torch.float64),
    "uniform": lambda: torch.rand(T, N, C, H, W, dtype=torch.float64) * 100 - 30,
    "skewed": lambda: torch.randn(T, N, C, H, W, dtype=torch.float64).exp(),
    "spikes": lambda: (torch.rand(T, N, C, H, W, dtype=torch.float64) > 0.8).double(),
    "far": lambda: torch.randn(T, N, C, H, W, dtype=torch.float64) + 1000,
    "small": lambda: torch.randn(T, N, C, H, W, dtype=torch.float64) * 0.01,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(("alpha", "v_th"), [(1.0, 0.5), (0.5, 0.3)])
def test_mean_zero_and_deviation_alpha_v_th_out_of_any_input(kind: str, alpha: float, v_th: float) -> None:
    x = INPUTS[kind]()
    y = normalised(x, alpha=alpha, v_th=v_th)
    for c in range(C):
        var = x[:, :, c].var(correction=0)
        assert y[:, :, c].mean().item() == pytest.approx(0, abs=1e-10)
        assert y[:, :, c].var(correction=0).item() == pytest.approx(
            (alpha * v_th) ** 2 * (var / (var + EPS)).item(), rel=1e-9
        )


def test_weight_and_bias_act_after_the_scale() -> None:
    x = INPUTS["gaussian"]()
    weight, bias = torch.arange(1.0, C + 1).double(), torch.arange(C).double() - 7
    mean, var = functional.moments(x)
    y = functional.tdbn(x, weight, bias, alpha=0.5, v_th=0.3, mean=mean, var=var, eps=EPS)
    plain = normalised(x, alpha=0.5, v_th=0.3)
    for c in range(C):
        torch.testing.assert_close(y[:, :, c], (c + 1) * plain[:, :, c] + (c - 7), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_sum_of_branches_has_deviation_v_th(branches: int) -> None:
    """Uncorrelated branches: the variances alpha^2 v_th^2 = v_th^2 / n add up to v_th^2 exactly."""
    basis = torch.randn(T * N * H * W, branches + 1, dtype=torch.float64)
    basis[:, 0] = 1  # the others become orthogonal to the constant, so they have mean 0
    columns = torch.linalg.qr(basis).Q[:, 1:]
    total = torch.zeros(T, N, 1, H, W, dtype=torch.float64)
    for i, column in enumerate(columns.T):
        x = column.reshape(T, N, 1, H, W) * 10 ** (i + 3) + 5 * i
        total += normalised(x, alpha=branches**-0.5, v_th=0.5)
    assert total.var(correction=0).item() == pytest.approx(0.25, rel=1e-5)  # eps takes 1e-5 of it at most


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("v_th", [0.3, 0.5, 2.0])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.1, 100.0), (50.0, -3.0)])
def test_one_in_six_neurons_fires_at_the_first_step(branches: int, v_th: float, scale: float, shift: float) -> None:
    """N(0, v_th^2) exceeds v_th with probability P(Z > 1) = erfc(1/sqrt 2) / 2 = 0.1587, for any v_th and n."""
    xs = [torch.randn(1, 30, 2, 17, 19, dtype=torch.float64) * scale + shift for _ in range(branches)]
    soma = Soma(2, branches, v_th=v_th, width=2 * v_th).double()
    expected = erfc(1 / sqrt(2)) / 2
    sigma = sqrt(expected * (1 - expected) / xs[0].numel())
    assert soma(*xs).mean().item() == pytest.approx(expected, abs=4 * sigma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variance_survives_a_mean_of_a_thousand_deviations(dtype: torch.dtype) -> None:
    """Mean of squares minus square of mean, 1000001 - 1000000, would be off by several per cent in float32."""
    x = (torch.randn(T, 16, C, 13, 11, dtype=torch.float64) + 1000).to(dtype)
    soma = Soma(C, momentum=1.0).to(dtype)
    spikes = soma(x)
    mean, var = functional.moments(x)
    exact = x.double().transpose(0, 2).flatten(1)
    for seen_mean, seen_var in ((mean, var), (soma.running_mean[0], soma.running_var[0])):
        torch.testing.assert_close(seen_mean.double(), exact.mean(1), rtol=1e-6, atol=0)
        torch.testing.assert_close(seen_var.double(), exact.var(1, correction=0), rtol=1e-4, atol=0)
    assert 0.14 < spikes[0].mean().item() < 0.18
    assert normalised(x, alpha=1.0, v_th=0.5).std().item() == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("axis", "length"), [(0, T), (1, N), (3, H), (4, W)])
def test_statistics_are_over_time_batch_and_space_together(axis: int, length: int) -> None:
    """x = 0, 1, ..., k-1 along one axis has mean (k-1)/2 and biased variance (k^2-1)/12 in every channel."""
    steps = torch.arange(length, dtype=torch.float64)
    x = steps.view([-1 if d == axis else 1 for d in range(5)]).expand(T, N, C, H, W)
    channel = 10 * torch.arange(C, dtype=torch.float64)
    x = x + channel[:, None, None]
    soma = Soma(C, momentum=1.0).double()
    soma(x)
    for mean, var in (functional.moments(x), (soma.running_mean[0], soma.running_var[0])):
        assert mean.tolist() == pytest.approx([(length - 1) / 2 + 10 * c for c in range(C)], rel=1e-12)
        assert var.tolist() == pytest.approx([(length**2 - 1) / 12] * C, rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 1, C), (1, 1, C, 1, 1)])
def test_one_value_per_channel_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected more than one value per channel, got .*; use a larger batch"):
        functional.moments(torch.randn(shape))
    with pytest.raises(ValueError, match="expected more than one value per channel"):
        Soma(C)(torch.randn(shape))


def test_one_value_per_channel_shown_several_times_raises() -> None:
    with pytest.raises(ValueError, match="expected more than one value per channel"):
        Soma(C)(torch.randn(1, 1, C).expand(T, -1, -1))


def test_one_value_per_channel_is_enough_for_evaluation() -> None:
    assert Soma(C).eval()(torch.randn(1, 1, C)).shape == (1, 1, C)


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_static_input_equals_its_copy(branches: int, training: bool) -> None:
    """An image shown T times has stride 0 over T; outputs, moments and gradients are those of T real copies."""
    images = [torch.randn(1, N, C, H, W, dtype=torch.float64) * 3 + 1 for _ in range(branches)]
    weigh = torch.randn(T, N, C, H, W, dtype=torch.float64)
    outcomes = []
    for repeat in (lambda x: x.expand(T, -1, -1, -1, -1), lambda x: x.repeat(T, 1, 1, 1, 1)):
        soma = Soma(C, branches).double().train(training)
        with torch.no_grad():
            soma.weight += torch.arange(branches * C).view(branches, C) / 10
            soma.bias += 0.1
        xs = [image.clone().requires_grad_() for image in images]
        spikes = soma(*map(repeat, xs))
        (spikes * weigh).sum().backward()
        gradients = [p.grad for p in (*xs, soma.weight, soma.bias)]
        outcomes.append([spikes.detach(), soma.running_mean, soma.running_var, *gradients])
    for static, copied in zip(*outcomes, strict=True):
        torch.testing.assert_close(static, copied, rtol=1e-9, atol=1e-12)
