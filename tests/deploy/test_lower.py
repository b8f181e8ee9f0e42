import pytest
import torch
from torch import nn

from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.convolution import FrozenConv2d
from rheobase.deploy.folding import fold
from rheobase.deploy.lower import diagonal, lower, node_shapes
from rheobase.deploy.network import INPUT, LIF, Network, Scale
from tests.deploy.networks import images, tiny


@pytest.mark.parametrize("global_pool", [False, True])
def test_convolutions_and_neurons_remain_and_spikes_are_identical(global_pool):
    model = tiny(global_pool=global_pool)
    lowered = lower(fold(model), (2, 7, 7))
    assert {type(node) for node in lowered.nodes.values()} == {FrozenConv2d, LIF}
    x = images(3, 2, 7)
    result = agreement(record(model, x, 4), record(lowered, x, 4))
    assert set(result.layers.values()) == {0.0}
    assert result.logits < 1e-9


def test_shapes_follow_the_image():
    shapes = node_shapes(fold(tiny()), (2, 7, 7))
    assert shapes[INPUT] == (2, 7, 7)
    assert shapes["body_1_soma"] == (6, 4, 4)
    assert shapes["head_pool"] == (12, 2, 2)
    assert shapes["head_decode"] == (5,)


def test_a_scaled_pool_is_a_diagonal_convolution():
    scale = Scale(torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64))
    pool = nn.AvgPool2d(3, 2, 1)
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    torch.testing.assert_close(diagonal(scale, pool)(x), scale(pool(x)))
    torch.testing.assert_close(diagonal(scale)(x), scale(x))


def test_what_cannot_be_lowered_is_named():
    nodes = {"grouped": nn.Conv2d(4, 4, 3, groups=2), "neurons": LIF(0.25, torch.ones(4))}
    network = Network(nodes, {"grouped": [INPUT], "neurons": ["grouped"]})
    with pytest.raises(ValueError, match="'grouped'"):
        lower(network, (4, 7, 7))
