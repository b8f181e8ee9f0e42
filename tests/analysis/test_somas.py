from functools import partial

import pytest
import torch

from rheobase.analysis.somas import VARIANTS, LawSoma, NeuNorm, NoNorm, StepNorm, UnitAlpha, UnscaledNorm
from rheobase.models import build

T, N, C = 3, 40, 5


def branches(n: int) -> list[torch.Tensor]:
    torch.manual_seed(4)
    return [2 + 3 * torch.randn(T, N, C, 6, 7, dtype=torch.float64) for _ in range(n)]


@pytest.mark.parametrize(
    ("soma", "deviation"), [(LawSoma, 0.3), (UnitAlpha, 0.3 * 2**0.5), (UnscaledNorm, 2**0.5), (StepNorm, 0.3)]
)
def test_deviation_of_the_current_of_two_branches(soma: type[LawSoma], deviation: float) -> None:
    current = soma(C, 2, v_th=0.3).double().current(*branches(2)).detach()
    assert float(current.std()) == pytest.approx(deviation, rel=0.02)
    assert float(current.mean()) == pytest.approx(0, abs=1e-6)


def test_statistics_of_every_step() -> None:
    (x,) = branches(1)
    x = x * torch.tensor([1.0, 2.0, 5.0]).view(3, 1, 1, 1, 1)
    soma = StepNorm(C, timesteps=T, momentum=1.0).double()
    current = soma.current(x)
    assert current.std((1, 3, 4)).mean(1).tolist() == pytest.approx([0.5] * 3, rel=0.01)
    torch.testing.assert_close(soma.eval().current(x), current, rtol=1e-6, atol=1e-6)  # its running statistics
    with pytest.raises(ValueError, match="at most 3"):
        soma.current(torch.cat([x, x]))


def test_no_normalisation_is_a_sum() -> None:
    x, y = branches(2)
    torch.testing.assert_close(NoNorm(C, 2).double().current(x, y), x + y)


def test_neunorm_subtracts_the_slow_mean_by_hand() -> None:
    soma = NeuNorm(2, decay=0.0)
    x = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]])  # [T, N, C]: one of two neurons fires, then both
    slow = [0.1 * 0.5, 0.9 * 0.05 + 0.1 * 1.0]
    expected = torch.tensor([[[1 - slow[0], -slow[0]]], [[1 - slow[1], 1 - slow[1]]]])
    torch.testing.assert_close(soma(x), expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_and_evaluates(name: str) -> None:
    _, soma = VARIANTS[name]
    if soma is StepNorm:
        soma = partial(soma, timesteps=T)  # type: ignore[assignment]
    torch.manual_seed(0)
    network = build("resnet8", num_classes=3, soma=soma)
    network(torch.randn(5, 1, 8, 8), T).sum().backward()
    assert network.head.decode.bias.grad is not None
    assert network.eval()(torch.randn(5, 1, 8, 8), T).shape == (T, 5, 3)
