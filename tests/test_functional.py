"""The functions of the law as an interface: shapes, types, bad input. Their values are pinned in `conformance`."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import functional, kernels

T, N, C, H, W = 3, 4, 5, 6, 7
NEURON = {"decay": 0.25, "v_th": 0.5, "width": 1.0, "eps": 1e-5}


def test_steps_one_by_one_equal_the_whole_sequence() -> None:
    x = torch.randn(T, N, C, H, W, dtype=torch.float64)
    v = torch.zeros(N, C, H, W, dtype=torch.float64)
    spikes = []
    for x_t in x:
        s, v = functional.lif_step(x_t, v, decay=0.25, v_th=0.5)
        spikes.append(s)
    assert torch.equal(torch.stack(spikes), functional.lif(x, decay=0.25, v_th=0.5, width=1.0))


@pytest.mark.parametrize(
    ("neuron", "message"),
    [
        ({"surrogate": "step"}, "unknown surrogate 'step'; choose one of rectangle, triangle, sigmoid, atan"),
        ({"reset": "mild"}, "unknown reset 'mild'; choose one of hard, soft"),
        ({"decay": torch.ones(C + 1)}, f"expected one decay, or one for each of {C} channels, got [{C + 1}]"),
        ({"decay": torch.ones(C, 1)}, f"expected one decay, or one for each of {C} channels, got [{C}, 1]"),
    ],
)
@pytest.mark.parametrize("backend", ["law", "kernels"])
def test_settings_that_do_not_exist(backend: str, neuron: dict[str, Any], message: str) -> None:
    x, ones = torch.randn(T, N, C), torch.ones(1, C)
    fire = functional.fire if backend == "law" else kernels.fire
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fire([x], ones, ones, **NEURON | neuron)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_come_out_as_they_went_in(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    x = torch.randn(T, N, C, H, W).to(dtype).requires_grad_()
    mean, var = functional.moments(x)
    ones, zeros = torch.ones(C, dtype=wide), torch.zeros(C, dtype=wide)
    y = functional.tdbn(x, ones, zeros, alpha=1.0, v_th=0.5, mean=mean, var=var, eps=1e-5)
    spikes, (fire_mean, fire_var) = functional.fire([x], [ones], [zeros], **NEURON)
    assert mean.dtype == var.dtype == fire_mean.dtype == fire_var.dtype == wide
    assert y.dtype == spikes.dtype == functional.readout(x.flatten(2)).dtype == dtype
    spikes.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


def test_spikes_are_zero_or_one() -> None:
    spikes = functional.lif(torch.randn(T, N, C), decay=0.25, v_th=0.5, width=1.0)
    assert spikes.unique().tolist() == [0, 1]


@pytest.mark.parametrize("shape", [(T, N, C), (T, N, C, W), (T, N, C, H, W)])
def test_any_number_of_spatial_dimensions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    mean, var = functional.moments(x)
    for c in range(C):
        assert mean[c].item() == pytest.approx(x[:, :, c].mean().item())
        assert var[c].item() == pytest.approx(x[:, :, c].var(correction=0).item())
    spikes, _ = functional.fire([x], [torch.ones(C).double()], [torch.zeros(C).double()], **NEURON)
    assert spikes.shape == shape


def test_given_moments_are_returned_and_receive_no_gradient() -> None:
    x = torch.randn(T, N, C, requires_grad=True)
    given = (torch.zeros(1, C, requires_grad=True), torch.ones(1, C, requires_grad=True))
    spikes, (mean, var) = functional.fire([x], torch.ones(1, C), torch.zeros(1, C), moments=given, **NEURON)
    spikes.sum().backward()
    assert torch.equal(mean, given[0])
    assert torch.equal(var, given[1])
    assert given[0].grad is None
    assert given[1].grad is None


def test_readout_is_the_mean_over_time() -> None:
    logits = torch.tensor([[[1.0, -2.0]], [[2.0, 0.0]], [[6.0, 5.0]]])  # [T=3, N=1, K=2]
    assert functional.readout(logits).tolist() == [[3.0, 1.0]]


def test_readout_adds_half_precision_in_float32() -> None:
    # 256 + 1 is 256 in bfloat16: summed there step by step, the mean of these four would be 64.5
    logits = torch.tensor([256.0, 1.0, 1.0, 2.0], dtype=torch.bfloat16).view(4, 1, 1)
    assert functional.readout(logits).item() == 65


def branch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("xs", "count", "message"),
    [
        ([], 0, "fire: expected at least one branch, got none"),
        ([branch(T, N, C)], 2, "fire: got 1 branches, but 2 weights, 2 biases"),
        ([branch(T, N, C, dtype=torch.int64)], 1, "fire: expected floating-point input, got torch.int64"),
        ([branch(N, C)], 1, f"fire: expected branches of one shape [T, N, C, ...], got [[{N}, {C}]]"),
        (
            [branch(T, N, C), branch(T + 1, N, C)],
            2,
            f"fire: expected branches of one shape [T, N, C, ...], got [[{T}, {N}, {C}], [{T + 1}, {N}, {C}]]",
        ),
        (
            [branch(T, N, C), branch(T, N, C, dtype=torch.float64)],
            2,
            "fire: expected branches of one dtype, got ['torch.float32', 'torch.float64']",
        ),
        (
            [branch(0, N, C)],
            1,
            f"fire: expected at least one element in every dimension, got [0, {N}, {C}]",
        ),
        ([branch(T, N, C + 1)], 1, f"fire: expected {C} channels in dimension 2, got [{T}, {N}, {C + 1}]"),
    ],
)
def test_bad_branches(xs: list[Tensor], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        functional.fire(xs, torch.ones(count, C), torch.zeros(count, C), **NEURON)


def test_moments_of_another_number_of_branches() -> None:
    given = torch.zeros(2, C), torch.ones(2, C)
    message = "fire: got 1 branches, but 1 weights, 1 biases, moments of 2 and 2 branches"
    with pytest.raises(ValueError, match=f"^{message}$"):
        functional.fire([branch(T, N, C)], torch.ones(1, C), torch.zeros(1, C), moments=given, **NEURON)


def test_moments_need_a_channel_dimension() -> None:
    with pytest.raises(ValueError, match=re.escape(f"moments: expected [T, N, C, ...], got [{N}, {C}]")):
        functional.moments(torch.zeros(N, C))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0.0}, "spike: expected width > 0, got 0.0"),
        ({"width": -1.0}, "spike: expected width > 0, got -1.0"),
        ({"decay": 1.5}, "lif: expected a decay from 0 to 1, got 1.5"),
        ({"decay": float("nan")}, "lif: expected a decay from 0 to 1, got nan"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        functional.lif(torch.ones(2, 3), **{"decay": 0.5, "v_th": 0.5, "width": 1.0, **settings})
