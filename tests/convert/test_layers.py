"""Images on their way through a network, layer by layer."""

import pytest
import torch
from torch import Tensor, nn

from rheobase.convert import layers as module
from rheobase.convert.graph import Choice, Neurons, relu_graph, spiking
from rheobase.convert.layers import Layers, channel_means, quantile
from rheobase.deploy.agreement import record
from rheobase.models import BasicBlock, MSBlock, PooledHead
from rheobase.nn import Conv2d, ReluSoma, as_sequence
from tests.convert.networks import relu_net
from tests.deploy.networks import images


@pytest.mark.parametrize("block", [BasicBlock, MSBlock])
@pytest.mark.parametrize("together", [5, 2048])
def test_layer_by_layer_is_the_network(block: type, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spikes of all images through one layer after the other are those of the network as a whole."""
    monkeypatch.setattr(module, "TOGETHER", together)
    graph, x, timesteps = relu_graph(relu_net(block, PooledHead)), images(4, 2, 8), 3
    layers, choice = Layers(graph, x, timesteps), Choice()
    means, shift = {}, torch.linspace(-0.3, 0.4, 3, dtype=torch.float64)
    layers.shifts["stem"] = choice.shifts["stem"] = shift
    for i, name in enumerate(layers):
        choice.neurons[name] = Neurons(0.4 + 0.1 * i, initial=0.05 * i)
        means[name] = layers.fire(name, choice.neurons[name], "soft")
    found = record(spiking(graph, choice), x, timesteps)
    for name, spikes in found.spikes.items():
        rate = spikes.unflatten(2, (len(means[name]), -1)).double().mean((0, 1, 3))
        torch.testing.assert_close(means[name], choice.neurons[name].threshold * rate)
        assert spikes.any()


def test_what_nobody_needs_is_forgotten() -> None:
    layers = Layers(relu_graph(relu_net()), images(2, 2, 8), 1)
    kept = []
    for name in layers:
        layers.send(name, [current.relu() for current in layers.currents(name)])
        kept.append(sorted(layers._sent))
    assert kept[0] == ["input", "soma"]
    assert kept[1] == ["body_0_soma1", "soma"]
    assert kept[2] == ["body_0_soma1", "body_0_soma2", "soma"]
    assert kept[3] == ["body_0_soma2", "body_1_soma1"]


def test_a_synapse_of_its_own() -> None:
    layers = Layers(relu_graph(relu_net()), images(2, 2, 8), 1)
    assert layers.own_synapse("soma") == "stem"
    assert layers.own_synapse("body_0_soma2") == "body_0_conv2"
    currents = Layers(relu_graph(relu_net(MSBlock)), images(2, 2, 8), 1)
    assert currents.own_synapse("body_0_neurons") == "stem"
    assert currents.own_synapse("body_1_neurons") == "body_0_conv2"  # the stem feeds an earlier layer too
    carried = Layers(relu_graph(Carried()), torch.zeros(2, 1, 1, 1), 1)
    assert carried.own_synapse("second") == "conv2"
    assert Layers(relu_graph(Carried(twice=True)), torch.zeros(2, 1, 1, 1), 1).own_synapse("second") is None


class Carried(nn.Module):
    """Currents that two layers read; the second one has a synapse of its own, or none."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2, self.decode = Conv2d(1, 2, 1), Conv2d(2, 2, 1), nn.Linear(2, 2)
        self.first, self.second, self.twice = ReluSoma(2, normalize=False), ReluSoma(2, normalize=False), twice

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        current = self.conv1(as_sequence(x, timesteps))
        added = self.conv2(self.first(current))
        h = self.second(current) if self.twice else self.second(current + added)
        return self.decode(h.flatten(2))


def test_quantile_of_parts_is_that_of_the_whole() -> None:
    x = torch.randn(2, 70, 3, 11)
    values = x.flatten().sort().values
    for percent in (0.01, 50.0, 99.0, 99.9, 100.0):
        rank = max(1, round(percent / 100 * len(values)))
        want = values[rank - 1].item()
        assert quantile(x.split(9, 1), percent, 70) == pytest.approx(want if want > 0 else values[-1].item())


def test_quantile_of_silent_layers() -> None:
    x = torch.zeros(1, 1000, 2)
    assert quantile([x], 99.9, 1000) == 1.0
    x[0, 3, 1] = 0.7
    assert quantile([x], 99.9, 1000) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="expected a percentile above 0 and up to 100, got 101"):
        quantile([x], 101, 1000)


def test_means_of_parts_are_those_of_the_whole() -> None:
    x = torch.randn(2, 7, 3, 5)
    torch.testing.assert_close(channel_means(x.split(3, 1)), x.double().mean((0, 1, 3)))
