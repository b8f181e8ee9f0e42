"""How far two records agree, by hand."""

import pytest
import torch

from rheobase.deploy.agreement import Record, agreement


def test_spikes_logits_and_predictions_of_two_records() -> None:
    spikes = torch.tensor([[[1, 0, 0]], [[1, 1, 0]]]).bool()  # T, N, F = 2, 1, 3
    other = torch.tensor([[[1, 0, 0]], [[0, 1, 0]]]).bool()
    # over both timesteps, both networks choose class 0 for the first image and differ on the second one
    logits = torch.tensor([[[3.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.5, 0.0]]])  # T, N, K
    moved = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 2.0]]])
    found = agreement(Record({"layer": spikes}, logits), Record({"layer": other}, moved))
    assert found.layers == {"layer": pytest.approx(1 / 6)}
    assert found.rates == {"layer": pytest.approx(3 / 6)}
    assert (found.logits, found.predictions) == (2.0, 0.5)


def test_other_layers_cannot_be_compared() -> None:
    one, two = (Record({name: torch.zeros(1, 1, 1).bool()}, torch.zeros(1, 1, 2)) for name in "ab")
    with pytest.raises(ValueError, match="expected the same layers, got a and b"):
        agreement(one, two)
