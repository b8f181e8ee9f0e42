"""Energy from firing rates equals the counted one where spikes are spread evenly."""

import pytest
import torch
from torch import nn

from rheobase.analysis.activity import activity
from rheobase.analysis.fanout import fan_out
from rheobase.analysis.operations import ADDITION_PICOJOULE, MAC_PICOJOULE, operations
from rheobase.analysis.sizes import neurons
from rheobase.deploy import fold
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF, Scale, linear
from rheobase.models import build
from rheobase.models.blocks import DenseHead, MSBlock, SEWBlock
from tests.deploy.networks import styled


def always_firing(network: Network) -> Network:
    for node in network.nodes.values():
        if isinstance(node, LIF):
            node.v_th.fill_(-1e9)
    return network


def odd_network() -> Network:
    """Groups, dilation, stride, paddings of two sizes, a shortcut, and pooling before the last layer."""
    nodes: dict[str, nn.Module] = {
        "stem": nn.Conv2d(3, 4, 3, padding=1),
        "one": LIF(0.5, torch.ones(4)),
        "conv": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3), groups=2),
        "two": LIF(0.5, torch.ones(6)),
        "scale": Scale(torch.ones(6), None),
        "three": LIF(0.5, torch.ones(6)),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "decode": linear(torch.ones(5, 6), None),
    }
    names = [*nodes]
    return Network(nodes, dict(zip(names, [(n,) for n in ["input", *names]], strict=False))).eval()


@pytest.mark.parametrize("name", ["odd", "resnet8", "plain5", "resnet17", SEWBlock, MSBlock])
def test_it_is_what_is_counted_when_all_neurons_fire(name: str | type[nn.Module]) -> None:
    channels, size = (3, 9) if name == "odd" else (2, 34 if isinstance(name, str) else 8)
    if name == "odd":
        network = odd_network()
    elif isinstance(name, str):
        network = fold(build(name, in_channels=channels, image_size=size))
    else:
        network = fold(styled(name, DenseHead).float())
    counted = operations(always_firing(network), torch.randn(2, channels, size, size), 3)
    found = fan_out(network.to("meta"), (channels, size, size))
    additions = sum(layer.additions for layer in counted.layers if layer.fed_by == "spikes")
    others = sum(layer.effective for layer in counted.layers if layer.fed_by != "spikes")  # here, averages are all 1
    assert 3 * sum(found.additions.values()) == pytest.approx(additions, rel=1e-12)
    assert 3 * found.multiplications == pytest.approx(others, rel=1e-12)
    energy = (additions * ADDITION_PICOJOULE + others * MAC_PICOJOULE) * 1e-12
    assert found.joule(dict.fromkeys(found.neurons, 1.0), 3) == pytest.approx(energy, rel=1e-12)
    assert 3 * sum(found.neurons.values()) == counted.neuron_updates
    assert fan_out(network.double(), (channels, size, size)) == found


def test_energy_follows_the_rate_of_each_layer() -> None:
    found = fan_out(odd_network().to("meta"), (3, 9, 9))
    silent = dict.fromkeys(found.neurons, 0.0)
    rest = found.joule(silent, 2)
    assert rest == pytest.approx(2 * 4.6e-12 * (4 * 3 * 25**2 + 30))  # the stem and the layer behind the pooling
    assert found.joule(silent | {"two": 0.25}, 2) - rest == pytest.approx(2 * 0.25 * 0.9e-12 * found.neurons["two"])
    assert found.joule(silent | {"three": 1.0}, 2) == rest  # its spikes are averaged before they reach a weight


def test_an_input_of_zero_costs_nothing_and_of_one_an_addition() -> None:
    network = odd_network()
    found, silent = fan_out(network.to("meta"), (3, 9, 9)), dict.fromkeys(("one", "two", "three"), 0.0)
    rest = found.joule(silent, 2, {"one": 0.0, "other": 0.0})
    assert rest == pytest.approx(2 * 4.6e-12 * 30)
    assert found.joule(silent, 2, {"one": 0.0, "other": 1.0}) == found.joule(silent, 2)
    mixed = found.joule(silent, 2, {"one": 0.5, "other": 0.25})
    assert mixed - rest == pytest.approx(2e-12 * (0.5 * 0.9 + 0.25 * 4.6) * 4 * 3 * 25**2)


def test_neurons_are_counted_without_memory() -> None:
    with torch.device("meta"):
        network = build("resnet8", in_channels=2, image_size=11)
    counted = {
        layer.name: layer.neurons
        for layer in activity(build("resnet8", in_channels=2, image_size=11), [torch.randn(3, 2, 11, 11)], 1)
    }
    assert neurons(network, (2, 11, 11)) == counted
    reached = fan_out(fold(network), (2, 11, 11))
    assert reached.neurons == {name.replace(".", "_"): n for name, n in counted.items()}
