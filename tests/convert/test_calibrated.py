"""Half a threshold to start with, the threshold of the least error, and a bias for what is lacking."""

import pytest
import torch

from rheobase.convert import convert
from rheobase.convert.calibrated import best_thresholds
from rheobase.convert.graph import relu_graph
from rheobase.convert.layers import Layers, channel_means
from rheobase.deploy.agreement import record
from rheobase.functional import readout
from rheobase.models import BasicBlock, MSBlock, PooledHead
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


@pytest.mark.parametrize("block", [BasicBlock, MSBlock])
def test_mean_activations_of_every_channel_are_those_of_the_relu_network(block: type) -> None:
    model, x, timesteps = relu_net(block, PooledHead), images(20, 2, 8, seed=3), 4
    layers, wanted = Layers(relu_graph(model), x, 1), {}
    for name in layers:
        activations = [current.relu() for current in layers.currents(name)]
        wanted[name] = channel_means(activations)
        layers.send(name, activations)
    network = convert(model, "calibrated", timesteps, x)
    plain = convert(model, "data-norm", timesteps, x)
    errors = []
    for net in (network, plain):
        found = record(net, x, timesteps).spikes
        error = 0.0
        for name, means in wanted.items():
            rates = found[name].unflatten(2, (len(means), -1)).double().mean((0, 1, 3))
            error += (net.nodes[name].v_th * rates - means).abs().mean().item()
        errors.append(error)
    assert errors[0] < 0.2 * errors[1]


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
