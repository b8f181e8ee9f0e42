"""Rounding that knows its inputs is better for them than rounding to the nearest integer."""

import torch

from rheobase.deploy.rounding import BLOCK, DAMPING, DOUBT, GROUP, LARGEST, rounded


def correlated(samples: int, inputs: int, sources: int) -> torch.Tensor:
    torch.manual_seed(1)
    return (torch.randn(samples, sources) @ torch.randn(sources, inputs) > 1).double()


def error(weight: torch.Tensor, integers: torch.Tensor, inputs: torch.Tensor) -> float:
    return float(((weight - integers) @ inputs.T).square().mean())


def test_correlated_inputs_lose_less_also_where_it_was_not_fitted() -> None:
    torch.manual_seed(0)
    x = correlated(4000, 60, 9)
    weight = 40 * torch.randn(7, 60, dtype=torch.float64)
    integers = rounded(weight, x[:2000])
    assert torch.equal(integers, integers.round())
    assert error(weight, integers, x[2000:]) < 0.5 * error(weight, weight.round(), x[2000:])


def test_inputs_without_correlation_are_rounded_to_the_nearest() -> None:
    weight = 40 * torch.randn(7, 20, dtype=torch.float64)
    assert torch.equal(rounded(weight, torch.eye(20, dtype=torch.float64)), weight.round())


def test_the_range_is_kept_and_groups_are_rounded_alone() -> None:
    x = correlated(300, GROUP + 3, 5)
    weight = 200 * torch.randn(2, GROUP + 3, dtype=torch.float64)
    integers = rounded(weight, x)
    assert integers.abs().max() == LARGEST
    assert torch.equal(integers[:, GROUP:], rounded(weight[:, GROUP:], x[:, GROUP:]))


def test_silent_inputs_are_rounded_to_the_nearest() -> None:
    weight = 40 * torch.randn(3, 5, dtype=torch.float64)
    assert torch.equal(rounded(weight, torch.zeros(8, 5, dtype=torch.float64)), weight.round())


def test_blocks_change_nothing_and_the_weights_are_left_alone() -> None:
    """Against the rule as it is written: every error goes to all weights behind at once."""
    inputs = BLOCK + 9
    x = correlated(500, inputs, 11)
    moments = x.T @ x / len(x)
    moments += (DAMPING + DOUBT * inputs / len(x)) * moments.diagonal().mean() * torch.eye(inputs)
    spread = torch.linalg.cholesky(torch.linalg.inv(moments), upper=True)
    for outputs in (1, 4):  # the transpose of a single row is not a copy
        weight = 40 * torch.randn(outputs, inputs, dtype=torch.float64)
        before, rest, expected = weight.clone(), weight.clone(), torch.empty_like(weight)
        for j in range(inputs):
            expected[:, j] = rest[:, j].round().clamp(-LARGEST, LARGEST)
            rest -= ((rest[:, j] - expected[:, j]) / spread[j, j])[:, None] * spread[j]
        assert torch.equal(rounded(weight, x), expected)
        assert torch.equal(weight, before)
