"""Accuracy against T in one pass equals as many runs."""

import pytest
import torch

from rheobase.convert import convert
from rheobase.deploy.agreement import record
from rheobase.functional import readout
from rheobase.train.sweep import doubling, sweep
from tests.convert.networks import relu_net
from tests.deploy.networks import images


def test_every_point_is_a_run_of_its_own() -> None:
    model, x = relu_net(), images(13, 2, 8, seed=3)
    network, labels = convert(model, "rmp", 16, x), model(x, 1)[0].argmax(1)
    labels[:4] = 0
    batches = [(x[:6], labels[:6]), (x[6:], labels[6:])]
    points = sweep(network, batches, [3, 1, 16, 3])
    assert [p.timesteps for p in points] == [1, 3, 16]
    assert len({p.accuracy for p in points}) > 1
    for point in points:
        found = record(network, x, point.timesteps)
        assert point.accuracy == pytest.approx((readout(found.logits).argmax(1) == labels).double().mean().item())
        assert point.rates == pytest.approx({n: s.double().mean().item() for n, s in found.spikes.items()})


def test_doubling() -> None:
    assert doubling(1) == [1]
    assert doubling(8) == [1, 2, 4, 8]
    assert doubling(20) == [1, 2, 4, 8, 16, 20]


def test_mistakes() -> None:
    network = convert(relu_net(), "data-norm", 2, images(3, 2, 8))
    with pytest.raises(ValueError, match="expected numbers of timesteps of at least 1, got"):
        sweep(network, [], [0, 2])
    with pytest.raises(ValueError, match="sweep: expected at least one image, got none"):
        sweep(network, [], [2])
    with pytest.raises(ValueError, match="a recording has its own timesteps"):
        sweep(network, [(torch.zeros(2, 3, 2, 8, 8), torch.zeros(3))], [2])
