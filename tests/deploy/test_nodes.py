"""The neurons of a deployed network, by hand."""

import pytest
import torch

from rheobase.deploy.nodes import LIF, Left


def test_neurons_by_hand() -> None:
    """Currents 0.4, 0.4, 0.9, 0 at a threshold of 0.5, two channels."""
    x = torch.tensor([0.4, 0.4, 0.9, 0.0], dtype=torch.float64).view(4, 1, 1).expand(4, 1, 2)
    v_th = torch.full((2,), 0.5, dtype=torch.float64)
    decays = torch.tensor([0.5, 1.0], dtype=torch.float64)
    # decay 0.5: u = 0.4, 0.6 *, 1.0 * (0.1 / 2 left) and 0.45 / 2;  decay 1: u = 0.4, 0.8 *, 1.2 * and 0.7 *
    spikes = LIF(decays, v_th, reset="soft")([x], 4)[:, 0]
    assert spikes.T.tolist() == [[0, 1, 1, 0], [0, 1, 1, 1]]
    # 0.3 at the start. decay 0.5: u = 0.55 *, 0.4, 1.1 *, 0;  decay 1: u = 0.7 *, 0.4, 1.3 *, 0
    assert LIF(decays, v_th, initial=0.3)([x], 4)[:, 0].T.tolist() == [[1, 0, 1, 0], [1, 0, 1, 0]]
    initial = torch.tensor([0.0, 0.3], dtype=torch.float64)
    assert LIF(1.0, v_th, initial=initial)([x], 4)[:, 0].T.tolist() == [[0, 1, 1, 0], [1, 0, 1, 0]]


def test_a_soft_reset_of_integers_subtracts_an_integer() -> None:
    neurons = LIF(0.5, torch.tensor([2.625], dtype=torch.float64), 2, reset="soft")  # the threshold is 10 quarters
    s, v = neurons.step(torch.tensor([[4.0]], dtype=torch.float64), torch.tensor([[0.75]], dtype=torch.float64))
    assert (s.item(), v.item()) == (1.0, 0.25 + 4.0 - 2.5)


def test_many_branches_are_summed_whoever_scales_them() -> None:
    torch.manual_seed(0)
    xs = [torch.randn(4, 2, 3, 5, dtype=torch.float64) for _ in range(4)]
    scales = [None, torch.randn(3).double(), None, torch.randn(3).double()]
    neurons = LIF(0.5, torch.full((3,), 0.5, dtype=torch.float64), reset="soft")
    total = sum(x if s is None else x * s[:, None] for x, s in zip(xs, scales, strict=True))
    assert torch.equal(neurons(xs, 4, [Left(scale) for scale in scales]), neurons([total], 4))


def test_settings_of_neurons_fit_their_channels() -> None:
    for name in ("decay", "initial"):
        options = {"decay": 0.5} | {name: torch.zeros(2)}
        with pytest.raises(ValueError, match=rf"^LIF: expected one {name}, or 3, got the shape \[2\]$"):
            LIF(v_th=torch.ones(3), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^unknown reset 'half'; choose one of hard, soft$"):
        LIF(0.5, torch.ones(3), reset="half")
