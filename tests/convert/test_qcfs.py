"""The learnt activation and the neurons that stand for it."""

import pytest
import torch

from rheobase.convert import convert
from rheobase.functional import readout
from rheobase.nn import QcfsSoma
from tests.convert.networks import Single, pixels


def test_rates_are_the_activations_by_hand() -> None:
    """Threshold 2 and 4 levels, so steps of 0.5: activations are rounded, cut at 2, and 0 below 0.25."""
    model = Single(1.0, soma=QcfsSoma, levels=4)
    with torch.no_grad():
        model.soma.threshold.fill_(2.0)
    network = convert(model, "qcfs", 4)
    x = pixels(-1.0, 0.2, 0.3, 0.7, 0.8, 1.3, 1.9, 5.0)
    want = [0.0, 0.0, 0.5, 0.5, 1.0, 1.5, 2.0, 2.0]
    assert model(x, 1)[0, :, 0].tolist() == want
    assert readout(network(x, 4))[:, 0].tolist() == want
    lif = network.nodes["soma"]
    assert (lif.v_th.item(), lif.initial, lif.reset) == (2.0, 1.0, "soft")


def test_a_threshold_that_was_learnt_away() -> None:
    model = Single(1.0, soma=QcfsSoma)
    with torch.no_grad():
        model.soma.threshold.fill_(-0.5)
    with pytest.raises(ValueError, match=r"expected a threshold above 0, got -0\.5"):
        convert(model, "qcfs", 4)
