"""Soft resets and balanced thresholds, by hand."""

from rheobase.convert import convert
from tests.convert.networks import pixels
from tests.convert.test_spike_norm import Chain


def test_what_is_left_above_the_threshold_stays() -> None:
    """As in spike-norm, but the second neuron keeps what it has above 1: it fires at 2, 3, 4, ... instead of 2, 4, 6.

    So both fire at step 3 already.
    """
    network = convert(Chain(), "rmp", 3, pixels(0.5), percentile=100.0)
    assert network.nodes["soma1"].v_th.tolist() == [1.0, 1.0]
    assert network.nodes["soma2"].v_th.tolist() == [2.0]
    assert {network.nodes[name].reset for name in ("soma1", "soma2")} == {"soft"}


def test_few_large_currents_do_not_decide() -> None:
    """Of 2000 currents into the second layer, those of the only bright image at one step are 0.1 % or less."""
    images = pixels(*[0.125] * 999, 0.5)
    one, most = (convert(Chain(), "rmp", 4, images, percentile=p).nodes["soma2"].v_th.item() for p in (100.0, 99.9))
    assert most < one
    assert convert(Chain(), "rmp", 4, images).nodes["soma2"].v_th.item() == most
