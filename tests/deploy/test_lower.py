import pytest
import torch
from torch import nn

from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.convolution import FrozenConv2d
from rheobase.deploy.folding import fold
from rheobase.deploy.lower import diagonal, lower, node_shapes
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
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


def test_a_scale_is_a_diagonal_convolution():
    scale = Scale(torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64))
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    torch.testing.assert_close(diagonal(scale)(x), scale(x))


def chain(*nodes: nn.Module) -> Network:
    names = [str(i) for i in range(len(nodes))]
    return Network(
        {name: node.double() for name, node in zip(names, nodes, strict=True)},
        {name: [source] for name, source in zip(names, [INPUT, *names], strict=False)},
    )


@pytest.mark.parametrize(
    "nodes",
    [
        (nn.AvgPool2d(3, 2, 1), Scale(torch.randn(3), torch.randn(3))),
        (nn.AvgPool2d((2, 3), (2, 3)), nn.Conv2d(3, 5, (3, 2), padding=(2, 1))),
        (nn.AvgPool2d((2, 1)), nn.Conv2d(3, 5, 3, stride=(1, 2), dilation=(1, 2), padding=(1, 2))),
        (nn.AvgPool2d(2, divisor_override=3), nn.AvgPool2d((3, 1), 1, (1, 0)), nn.Conv2d(3, 5, (3, 2))),
        (nn.AvgPool2d(5, 1), nn.Conv2d(3, 5, 2)),
    ],
)
def test_pools_disappear_into_the_kernel_behind_them(nodes):
    network, x = chain(*nodes), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    lowered = lower(network, (3, 8, 12))
    assert [type(node) for node in lowered.nodes.values()] == [FrozenConv2d]
    torch.testing.assert_close(lowered(x, 1), network(x, 1))


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.AvgPool2d(3, 1)], ids=["a row is left over", "overlapping"])
def test_pools_that_would_show_their_padding_are_refused(pool):
    with pytest.raises(ValueError, match=r"^'1': a padded convolution after a pool \(window ., stride ., 7 pixels"):
        lower(chain(pool, nn.Conv2d(3, 5, 3, padding=1)), (3, 7, 7))


def test_a_synapse_that_reads_pooled_and_other_spikes_becomes_two():
    torch.manual_seed(0)
    nodes = {
        "stem": nn.Conv2d(2, 3, 3, padding=1),
        "a": LIF(0.25, torch.full((3,), 0.1)),
        "pool": nn.AvgPool2d(3, 1, 1),
        "conv": nn.Conv2d(3, 4, 3),
        "b": LIF(0.25, torch.full((4,), 0.1)),
        "readout": nn.Conv2d(4, 5, 5),
    }
    inputs = {"stem": [INPUT], "a": ["stem"], "pool": ["a"], "conv": ["pool", "a"], "b": ["conv"], "readout": ["b"]}
    network = Network({name: node.double() for name, node in nodes.items()}, inputs)
    lowered = lower(network, (2, 7, 7))
    assert lowered.inputs["b"] == ("conv", "conv__1")
    assert lowered.nodes["conv__1"].bias is None
    x = images(3, 2, 7)
    result = agreement(record(network, x, 4), record(lowered, x, 4))
    assert set(result.layers.values()) == {0.0}
    assert min(result.rates.values()) > 0.05


def test_what_is_no_convolution_is_named():
    with pytest.raises(ValueError, match=r"^'2': these neurons read from a pool"):
        lower(chain(nn.Conv2d(2, 3, 3), nn.AvgPool2d(2), LIF(0.25, torch.ones(3))), (2, 8, 8))
    with pytest.raises(ValueError, match=r"^'1' computes the logits, but is not one convolution"):
        lower(chain(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1)), (2, 8, 8))
    with pytest.raises(ValueError, match=r"^'1': a convolution after AdaptiveAvgPool2d"):
        lower(chain(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2, 3, 1)), (2, 8, 8))


def test_what_cannot_be_lowered_is_named():
    nodes = {"grouped": nn.Conv2d(4, 4, 3, groups=2), "neurons": LIF(0.25, torch.ones(4))}
    network = Network(nodes, {"grouped": [INPUT], "neurons": ["grouped"]})
    with pytest.raises(ValueError, match="'grouped'"):
        lower(network, (4, 7, 7))
