from dataclasses import replace

import pytest
import torch

from rheobase.analysis.operations import Operations, operations
from rheobase.analysis.sizes import synapses
from rheobase.deploy import fold
from rheobase.deploy.formats.nir import to_graph
from rheobase.deploy.lower import diagonal
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale, linear
from rheobase.deploy.simulate import simulate
from rheobase.models import build
from rheobase.models.blocks import DenseHead, GlobalHead, MSBlock, PooledBlock, SEWBlock, SEWBottleneck
from tests.deploy.networks import images, styled, tiny


def by_hand() -> tuple[Network, torch.Tensor]:
    """Image 1 x 4 x 4 -> conv 1x1 to 2 channels -> LIF -> pool 2 -> fc to 3."""
    conv = torch.nn.Conv2d(1, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        conv.bias.zero_()
    nodes = {
        "conv": conv,
        "lif": LIF(0.0, torch.full((2,), 0.5)),
        "pool": torch.nn.AvgPool2d(2),
        "flatten": torch.nn.Flatten(),
        "decode": linear(torch.ones(3, 8), None),
    }
    wiring = {"conv": ["input"], "lif": ["conv"], "pool": ["lif"], "flatten": ["pool"], "decode": ["flatten"]}
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 0, 0] = x[0, 0, 0, 1] = 1.0  # two spikes of channel 0 in one window of the pooling
    x[0, 0, 3, 3] = 0.1  # not zero, but no spike
    return Network(nodes, wiring).eval(), x


def test_counts_by_hand() -> None:
    network, x = by_hand()
    found = operations(network, x, 5)
    conv, decode = found.layers
    assert (conv.fed_by, conv.dense, conv.bias) == ("image", 32, 5 * 32)
    assert (conv.additions, conv.multiplications) == (5 * 4, 5 * 2)  # two values of one, another, two channels
    assert (decode.fed_by, decode.dense) == ("averages", 24)
    assert (decode.multiplications, decode.from_spikes) == (5 * 3, 5 * 2 * 3)  # one average of two spikes
    assert found.neuron_updates == 5 * 32
    assert found.activation_sparsity == pytest.approx(1 - 2 / 32)
    assert found.count() == (20, 25)
    assert found.count(fold_pooling=True) == (20 + 30, 10)
    assert found.count(encode_once=True) == (4, 2 + 15)
    assert found.without_spikes == 5 * (32 + 24)
    assert found.energy(mac=2.0, addition=1.0) == pytest.approx((2 * 25 + 20) * 1e-12)
    assert found.dense_energy(mac=2.0) == pytest.approx(2 * 56e-12)
    names = found.neurobench()
    assert (names["Effective_MACs"], names["Effective_ACs"], names["Dense"]) == (45, 0, 5 * 56)
    assert (names["ParameterCount"], names["Footprint"]) == (2 + 2 + 24, 4 * (28 + 2))


def test_connections_are_weights_alone() -> None:
    network, x = by_hand()  # its biases are 0
    assert operations(network, x, 2).connection_sparsity == 0
    network.nodes["decode"].weight.data[0, :3] = 0
    assert operations(network, x, 2).connection_sparsity == pytest.approx(3 / 26)


def brute_force(network: Network, x: torch.Tensor, steps: int) -> dict[str, float]:
    """Products with inputs that are not zero: the synapse with weights 1 on the mask of its input, summed."""
    values, counts = {"input": x.expand(steps, *x.shape)}, {}
    for name, value in network.run(x, steps):
        values[name] = value.expand(steps, *value.shape[1:])
        node = network.nodes[name]
        mask = sum((values[source] != 0).double().flatten(0, 1) for source in network.inputs[name])
        if isinstance(node, torch.nn.Conv2d):
            ones = torch.ones_like(node.weight, dtype=torch.float64)
            counts[name] = torch.nn.functional.conv2d(mask, ones, None, node.stride, node.padding).sum().item()
        elif isinstance(node, torch.nn.Linear):
            counts[name] = mask.sum().item() * node.out_features
        elif isinstance(node, Scale):
            counts[name] = mask.sum().item()
    return {name: value / x.shape[0] for name, value in counts.items()}


@pytest.mark.parametrize("global_pool", [False, True])
def test_counts_of_a_network_by_brute_force(global_pool: bool) -> None:
    network, x = fold(tiny(global_pool=global_pool)), images(3, 2, 7)
    found = operations(network, x, 4)
    assert {layer.name: layer.effective for layer in found.layers} == pytest.approx(brute_force(network, x, 4))
    assert {layer.fed_by for layer in found.layers} == {"image", "spikes", "averages"}


@pytest.mark.parametrize("head", [GlobalHead, DenseHead])
@pytest.mark.parametrize("block", [SEWBlock, SEWBottleneck, MSBlock, PooledBlock])
def test_sums_are_counted_source_by_source(block: type, head: type) -> None:
    network, x = fold(styled(block, head)), images(3, 2, 8)
    found = operations(network, x, 4)
    assert {layer.name: layer.effective for layer in found.layers} == pytest.approx(brute_force(network, x, 4))
    for layer in found.layers:
        assert (layer.fed_by != "spikes") == (layer.multiplications > 0), layer.name
    done = simulate(to_graph(network, (2, 8, 8)), x[0].numpy(), 4).operations
    for layer in operations(network, x[:1], 4).layers:
        assert done[layer.name].additions == layer.additions + layer.bias, layer.name
        assert done[layer.name].multiplications == layer.multiplications, layer.name


def test_spikes_beside_averages_by_hand() -> None:
    """Two spikes of a 2 x 2 image of one channel, and their average, read by a layer of three outputs."""
    nodes = {
        "scale": Scale(torch.ones(1), None),
        "lif": LIF(0.0, torch.full((1,), 0.5)),
        "pool": torch.nn.AvgPool2d(3, 1, 1),
        "decode": torch.nn.Conv2d(1, 3, 1, bias=False),
    }
    network = Network(nodes, {"scale": [INPUT], "lif": ["scale"], "pool": ["lif"], "decode": ["lif", "pool"]})
    decode = operations(network, torch.tensor([[[[1.0, 1.0], [0.0, 0.0]]]]), 5).layers[1]
    assert (decode.fed_by, decode.additions, decode.multiplications) == ("averages", 5 * 2 * 3, 5 * 4 * 3)
    assert decode.from_spikes == 5 * 3 * (2 + 4 * 2)  # every window has both


def test_sequences_cost_the_same_as_images_shown_again() -> None:
    network, x = fold(tiny()), images(3, 2, 7)
    shown, sequence = operations(network, x, 4), operations(network, x.expand(4, *x.shape))
    assert replace(shown, repeated=False) == sequence
    assert shown.count(encode_once=True) != shown.count()
    assert sequence.count(encode_once=True) == sequence.count()  # no step is like the one before


def test_weights_of_zero_are_no_synapses() -> None:
    network, x = by_hand()
    with torch.no_grad():
        network.nodes["conv"].weight[1] = 0
        network.nodes["decode"].weight[:2] = 0
    conv, decode = operations(network, x, 5).layers
    assert (conv.dense, conv.additions, conv.multiplications) == (16, 5 * 2, 5)
    assert (decode.dense, decode.multiplications, decode.from_spikes) == (8, 5, 5 * 2)


def test_a_diagonal_convolution_counts_as_the_scale_that_it_is() -> None:
    scale = Scale(torch.tensor([0.5, -1.0, 2.0]), None)
    x = (torch.rand(2, 4, 3, 5, 6) < 0.3).double()
    as_scale, as_convolution = (
        operations(Network({"only": node}, {"only": [INPUT]}), x).layers for node in (scale, diagonal(scale))
    )
    assert as_scale == as_convolution
    assert as_scale[0].additions == x.sum() / 4


def test_grouped_convolutions_by_brute_force() -> None:
    conv = torch.nn.Conv2d(4, 6, 3, groups=2, padding=1, stride=2, bias=False).double()
    x = torch.randint(0, 3, (2, 3, 4, 5, 7)).double()
    (found,) = operations(Network({"only": conv}, {"only": [INPUT]}), x).layers
    ones = torch.ones_like(conv.weight)
    for count, mask in ((found.additions, x == 1), (found.multiplications, x > 1)):
        expected = torch.nn.functional.conv2d(mask.double().flatten(0, 1), ones, None, 2, 1, groups=2).sum() / 3
        assert count == pytest.approx(float(expected))


def test_dense_counts_are_those_of_the_shapes() -> None:
    options = {"num_classes": 7, "in_channels": 2, "image_size": 8}
    found = operations(fold(build("resnet8", **options).eval()), torch.randn(2, 2, 8, 8), 3)
    with torch.device("meta"):
        expected = synapses(build("resnet8", **options), (2, 8, 8))
    dense = {layer.name.replace("_", "."): layer.dense for layer in found.layers}
    assert dense.pop("body.0.shortcut") == 16 * 8 * 8  # the identity: a scale in the folded network
    assert dense == {layer.name: layer.multiplications for layer in expected}


def test_silent_networks_cost_no_additions() -> None:
    nothing = Operations(3, 1, True, [], 0, 1.0, 0, 0.0, 0)
    assert nothing.count() == (0, 0)


def test_sums_of_windows_are_counted_as_spikes() -> None:
    network, x = by_hand()
    network.nodes["pool"].divisor_override = 1
    decode = operations(network, x, 5).layers[1]
    assert decode.from_spikes == 5 * 2 * 3
