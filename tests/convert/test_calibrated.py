"""Half a threshold to start with, the threshold of the least error, and a bias for what is lacking."""

import pytest
import torch
from torch import Tensor

from rheobase.convert import calibrated, convert
from rheobase.convert.calibrated import best_thresholds
from rheobase.convert.graph import relu_graph
from rheobase.convert.layers import Layers, channel_means
from rheobase.deploy.agreement import record
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF
from rheobase.functional import readout
from rheobase.models import BasicBlock, MSBlock, PooledHead, SpikingNet
from tests.convert.networks import Single, pixels, relu_net
from tests.deploy.networks import images


def test_the_number_of_spikes_is_rounded() -> None:
    """A start at half of the threshold 1: 3/8 fires 3 times in 8 steps, where without it 2 spikes come."""
    network = convert(Single(1.0), "calibrated", 8, pixels(1.0, 0.875, 0.375, 0.125))
    lif = network.nodes["soma"]
    assert (lif.v_th.item(), lif.initial.item()) == (1.0, 0.5)
    assert network.nodes["conv"].bias.tolist() == pytest.approx([0.0])
    assert [readout(network(pixels(x), 8)).item() for x in (0.375, 0.125, 0.875)] == [0.375, 0.125, 0.875]


def test_best_threshold_by_trial() -> None:
    """With two steps, a threshold of 1 hits all but the one outlier; with many steps all of them can be hit."""
    values = torch.tensor([0.5, 1.0] * 500 + [2.0])
    both = torch.stack([values, 3 * values])  # each channel has its own
    assert best_thresholds(both, 2).tolist() == pytest.approx([1.0, 3.0])
    assert best_thresholds(both, 200).tolist() == pytest.approx([2.0, 6.0])
    # one step: what is above half a threshold fires, so both are met half-way
    assert best_thresholds(torch.tensor([[0.6, 1.0]]), 1).tolist() == pytest.approx([0.8])


def test_silent_channels_have_a_threshold_too() -> None:
    assert best_thresholds(torch.zeros(1, 5), 2).item() > 0
    network = convert(Single(1.0, -1.0), "calibrated", 8, pixels(1.0, 0.5))
    assert readout(network(pixels(0.5), 8)).flatten().tolist() == [0.5, 0.0]


def lacking(model: SpikingNet, network: Network, x: Tensor, timesteps: int) -> float:
    """How far the mean activations of all channels are from those of the ReLU network, summed over layers."""
    layers, error = Layers(relu_graph(model), x, 1), 0.0
    spikes = record(network, x, timesteps).spikes
    for name in layers:
        activations = [current.relu() for current in layers.currents(name)]
        layers.send(name, activations)
        means = channel_means(activations)
        rates = spikes[name].unflatten(2, (len(means), -1)).double().mean((0, 1, 3))
        lif = network.nodes[name]
        assert isinstance(lif, LIF)
        error += (lif.v_th * rates - means).abs().mean().item()
    return error


@pytest.mark.parametrize("block", [BasicBlock, MSBlock])
def test_mean_activations_of_every_channel_are_those_of_the_relu_network(block: type) -> None:
    model, x = relu_net(block, PooledHead), images(20, 2, 8, seed=3)
    own, plain = (lacking(model, convert(model, method, 4, x), x, 4) for method in ("calibrated", "data-norm"))
    assert own < 0.2 * plain


def test_one_round_corrects_only_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = relu_net(BasicBlock, PooledHead), images(20, 2, 8, seed=3)
    several = lacking(model, convert(model, "calibrated", 4, x), x, 4)
    monkeypatch.setattr(calibrated, "ROUNDS", 1)
    assert several < 0.5 * lacking(model, convert(model, "calibrated", 4, x), x, 4)


def test_half_a_threshold_can_be_spread_over_the_steps() -> None:
    """A threshold of 1 and 8 steps, so 1/16 at each; what is lacking then comes on top."""
    x = pixels(1.0, 0.875, 0.375, 0.125)
    network = convert(Single(1.0), "calibrated", 8, x, spread=True)
    assert network.nodes["soma"].initial == 0
    # 8 * 17/16 > 8: at every step; 7.5: 7 spikes; 3.5: 3; 1.5: 1, as without the start at a half
    assert network.nodes["conv"].bias.tolist() == pytest.approx([1 / 16])
    assert readout(network(x, 8)).flatten().tolist() == [1.0, 0.875, 0.375, 0.125]


def test_what_is_trained_from_it_fires_nearly_as_well() -> None:
    model, x = relu_net(), images(40, 2, 8, seed=3)
    want = model(x, 1)[0]
    half, spread = (convert(model, "calibrated", 4, x, spread=s) for s in (False, True))
    plain = convert(model, "data-norm", 4, x)
    errors = [(readout(net(x, 4)) - want).square().mean().item() for net in (half, spread, plain)]
    assert errors[1] < 0.5 * errors[2]
    assert not any(node.initial for name, node in spread.nodes.items() if "soma" in name)


def test_each_number_of_steps_has_its_own() -> None:
    model, x = relu_net(), images(20, 2, 8, seed=3)
    few, many = (convert(model, "calibrated", t, x).nodes["soma"].v_th[0] for t in (2, 64))
    assert few < many
