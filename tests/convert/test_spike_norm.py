"""Thresholds balanced on spikes, by hand."""

import pytest
import torch
from torch import Tensor, nn

from rheobase.convert import convert
from rheobase.nn import Conv2d, ReluSoma, as_sequence
from tests.convert.networks import Single, pixels


class Chain(nn.Module):
    """Two neurons that feed a third, with the weights 1, 2 and then 1 for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.decode = Conv2d(1, 2, 1, bias=False), Conv2d(2, 1, 1, bias=False), nn.Linear(1, 1)
        self.soma1, self.soma2 = ReluSoma(2, normalize=False), ReluSoma(1, normalize=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
            self.second.weight.fill_(1.0)
        self.double()

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        s = self.soma2(self.second(self.soma1(self.first(as_sequence(x, timesteps)))))
        return self.decode(s.flatten(2))


def test_the_largest_current_at_any_step_is_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Currents 0.5 and 1, so the threshold of the first layer is 1: its neurons fire at steps 3 (0.5, 1, 1.5) and 2.

    The second one then fires at 4, 6 (a hard reset: 1, 2), ... and the first at 3, 6: at step 6 both do, and a current
    of 2 thresholds of 1 arrives.
    """
    monkeypatch.setattr("rheobase.convert.spike_norm.FEWEST", 1)
    network = convert(Chain(), "spike-norm", 6, pixels(0.5))
    assert network.nodes["soma1"].v_th.tolist() == [1.0, 1.0]
    assert network.nodes["soma2"].v_th.tolist() == [2.0]
    assert {network.nodes[name].reset for name in ("soma1", "soma2")} == {"hard"}
    assert convert(Chain(), "spike-norm", 5, pixels(0.5)).nodes["soma2"].v_th.tolist() == [1.0]  # not yet together


@pytest.mark.parametrize("method", ["spike-norm", "rmp"])
def test_thresholds_for_few_steps_wait_for_the_spikes(method: str) -> None:
    """In one step nothing arrives at the second layer, and any threshold would do."""
    for timesteps in (1, 6, 16):
        assert convert(Chain(), method, timesteps, pixels(0.5)).nodes["soma2"].v_th.tolist() == [2.0]


def test_thresholds_are_chosen_within_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheobase.convert.spike_norm.FEWEST", 1)
    monkeypatch.setattr("rheobase.convert.spike_norm.MOST", 5)
    assert convert(Chain(), "spike-norm", 1000, pixels(0.5)).nodes["soma2"].v_th.tolist() == [1.0]


def test_a_lower_percentile_is_a_lower_threshold() -> None:
    assert convert(Single(1.0), "spike-norm", 3, pixels(0.5, 0.25), percentile=50.0).nodes["soma"].v_th.item() == 0.25


def test_a_hard_reset_loses_what_is_above_the_threshold_however_many_steps_follow() -> None:
    """Thresholds of 1, currents of 1 and 0.6: a potential of 1.2 at every second step becomes 0, or 0.2 if soft."""
    images = pixels(1.0, 0.6)
    for method, rate in (("spike-norm", 0.5), ("rmp", 0.6)):
        network = convert(Single(1.0), method, 6, images, percentile=100.0)
        assert network(images, 600)[:, 1].mean().item() == pytest.approx(rate, abs=1 / 600)
