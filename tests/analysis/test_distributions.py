import pytest
import torch

from rheobase import functional
from rheobase.analysis import distributions as dist

STEPS, V_TH = 7, 0.5


@pytest.mark.parametrize("decay", [0.0, 0.25, 0.5, 1.0])
def test_theorem_2_where_no_reset_occurs(decay: float) -> None:
    found = dist.membrane_distribution(0.05, decay=decay, v_th=V_TH, timesteps=STEPS, neurons=20_000)
    assert max(found.fired) < 1e-3
    assert found.variance == pytest.approx(found.without_reset, rel=0.05)


def test_variance_without_reset_by_hand() -> None:
    assert dist.variance_without_reset(2.0, 0.5, 3) == pytest.approx(4 * (1 + 0.25 + 0.0625))
    assert dist.variance_without_reset(2.0, 1.0, 3) == 12


def test_resets_bend_the_variance_down_and_the_mean_below_zero() -> None:
    found = dist.membrane_distribution(V_TH, decay=0.5, v_th=V_TH, timesteps=STEPS, neurons=20_000)
    assert found.variance[0] == pytest.approx(V_TH**2, rel=0.05)
    assert found.variance[-1] < 0.95 * found.without_reset[-1]
    assert found.mean[-1] < -0.05


def test_potentials_are_those_of_the_law() -> None:
    x = torch.randn(STEPS, 11, dtype=torch.float64)
    u = dist.potentials(x, decay=0.25, v_th=V_TH)
    assert torch.equal((u > V_TH).double(), functional.lif(x, decay=0.25, v_th=V_TH, width=1.0))


def test_rates_without_memory_are_binomial() -> None:
    found = dist.firing_distribution(V_TH, decay=0.0, v_th=V_TH, timesteps=4, neurons=50_000)
    assert found.shares == pytest.approx(found.without_memory, abs=0.01)
    assert sum(found.without_memory) == pytest.approx(1)
    assert found.rate == pytest.approx(found.first_step, rel=0.03)
    assert found.first_step == pytest.approx(0.15866, abs=1e-5)


def test_rates_grow_with_the_variance() -> None:
    rates = [dist.firing_distribution(s, decay=0.25, v_th=V_TH, timesteps=4, neurons=5000).rate for s in (0.1, 0.5, 5)]
    assert rates == sorted(rates)
    assert rates[0] < 0.01
    assert rates[2] > 0.4


def test_mean_and_deviation_of_a_histogram_by_hand() -> None:
    found = dist.Histogram([0.0, 2.0, 4.0, 6.0], [0.1, 0.2, 0.1])  # centres 1, 3, 5
    assert found.mean == pytest.approx(3)
    assert found.deviation == pytest.approx(2**0.5)


def test_histogram_is_a_density() -> None:
    found = dist.histogram(torch.linspace(-1, 1, 1001), -1, 1, bins=20)
    assert sum(found.density) * 0.1 == pytest.approx(1)
    assert len(found.edges) == 21
    with pytest.raises(ValueError, match="above 0"):
        dist.firing_distribution(0, decay=0.25, v_th=V_TH, timesteps=3)
