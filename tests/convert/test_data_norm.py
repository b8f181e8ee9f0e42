"""Single layers against rates worked out by hand."""

import pytest
import torch

from rheobase.convert import convert
from tests.convert.networks import Single, pixels


def spikes(network: torch.nn.Module, x: float, timesteps: int) -> list[int]:
    """Of the first neuron, which the decoding layer multiplies by its threshold."""
    logits = network(pixels(x), timesteps)[:, 0, 0]
    return (logits / network.nodes["soma"].v_th[0]).round().int().tolist()


@pytest.mark.parametrize(
    ("reset", "fired"),
    [
        # u = 3/8, 6/8, 9/8: a spike leaves 1/8; 4/8, 7/8, 10/8: 2/8; 5/8, 8/8 (not above 1), 11/8: 3/8; 6/8, 9/8
        ("soft", [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1]),
        # a spike leaves 0: every third step
        ("hard", [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]),
    ],
)
def test_spikes_of_one_neuron_by_hand(reset: str, fired: list[int]) -> None:
    """The weight is 2, and the largest activation 2 * 0.5 = 1, which is the threshold; the image gives 3/8."""
    network = convert(Single(2.0), "data-norm", 11, pixels(0.5, 0.25), percentile=100.0, reset=reset)
    assert network.nodes["soma"].v_th.tolist() == [1.0]
    assert spikes(network, 3 / 16, 11) == fired


def test_rates_are_activations() -> None:
    """Three neurons; a weight below 0 is silent, and a spike counts as much as the threshold, 0.75."""
    network = convert(Single(1.5, -1.0, 0.5), "data-norm", 12, pixels(0.5, 0.25), percentile=100.0)
    mean = network(pixels(0.25), 12).mean(0)[0]
    # currents 3/8, -1/4, 1/8; 12 steps of them make 4.5, -3 and 1.5, of which 6 - 1, 0 and 2 - 1 thresholds are
    # sent: a potential that only equals the threshold does not fire
    torch.testing.assert_close(mean, torch.tensor([0.75 * 5 / 12, 0, 0.75 * 1 / 12], dtype=torch.float64))


def test_percentile_ignores_outliers() -> None:
    outlier = torch.full((1000, 1, 1, 1), 0.25, dtype=torch.float64)
    outlier[7] = 9.0
    assert convert(Single(2.0), "data-norm", 4, outlier).nodes["soma"].v_th.tolist() == [0.5]
    assert convert(Single(2.0), "data-norm", 4, outlier, percentile=100.0).nodes["soma"].v_th.tolist() == [18.0]


def test_what_is_above_the_threshold_is_cut() -> None:
    network = convert(Single(2.0), "data-norm", 4, pixels(0.5, 0.25), percentile=100.0)
    assert network(pixels(4.0), 6).mean() == 1.0
