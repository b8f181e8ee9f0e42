"""The ReLU network as a graph, and what cannot be converted."""

import pytest
import torch
from torch import Tensor, nn

from rheobase.convert.graph import Choice, Neurons, _scaled, heights, layers_of, relu_graph, spiking
from rheobase.deploy.nodes import LIF, Scale
from rheobase.models import (
    BasicBlock,
    Bottleneck,
    DenseHead,
    GlobalHead,
    MSBlock,
    PlainBlock,
    PooledBlock,
    PooledHead,
    SEWBlock,
    build,
)
from rheobase.nn import Conv2d, QcfsSoma, ReluSoma, as_sequence
from tests.convert.networks import Single, relu_net
from tests.deploy.networks import images


@pytest.mark.parametrize("head", [GlobalHead, PooledHead, DenseHead])
@pytest.mark.parametrize("block", [PlainBlock, PooledBlock, BasicBlock, Bottleneck, MSBlock])
def test_the_graph_computes_what_the_network_does(block: type[nn.Module], head: type[nn.Module]) -> None:
    model, x = relu_net(block, head), images(4, 2, 8)
    graph = relu_graph(model)
    *_, (_, logits) = graph.walk(x[None], lambda _, lif, currents: sum(currents[1:], start=currents[0]).relu())
    torch.testing.assert_close(logits, model(x, 1), rtol=1e-9, atol=1e-9)


def test_spikes_stand_for_thresholds() -> None:
    """Synapses multiply what they read, also behind pools, and nothing else changes."""
    graph = relu_graph(relu_net(BasicBlock, PooledHead))
    names = layers_of(graph)
    choice = Choice({name: Neurons(2.0 + i, initial=0.5) for i, name in enumerate(names)}, "hard")
    made = spiking(graph, choice)
    assert list(made.nodes) == list(graph.nodes)
    assert made.inputs == graph.inputs
    for name, height in {"stem": 1.0, "body_0_conv1": 2.0, "body_0_shortcut": 2.0, "head_hidden": 8.0}.items():
        torch.testing.assert_close(made.nodes[name].weight, graph.nodes[name].weight * height)
    torch.testing.assert_close(made.nodes["body_0_conv1"].bias, graph.nodes["body_0_conv1"].bias)
    lif = made.nodes[names[1]]
    assert isinstance(lif, LIF)
    assert (lif.decay, lif.reset, lif.initial, lif.v_th.tolist()) == (1.0, "hard", 0.5, [3.0] * 3)


@pytest.mark.parametrize("head", [PooledHead, DenseHead])
@pytest.mark.parametrize("block", [BasicBlock, MSBlock])
def test_each_channel_can_have_a_threshold(block: type[nn.Module], head: type[nn.Module]) -> None:
    """One number per channel, all the same, makes the network that the number makes."""
    graph, x = relu_graph(relu_net(block, head)), images(4, 2, 8)
    numbers = {name: 0.5 + 0.25 * i for i, name in enumerate(layers_of(graph))}
    one = spiking(graph, Choice({name: Neurons(n, initial=n / 2) for name, n in numbers.items()}))
    vectors = {name: torch.full_like(graph.nodes[name].v_th, n) for name, n in numbers.items()}
    many = spiking(graph, Choice({name: Neurons(v, initial=v / 2) for name, v in vectors.items()}))
    assert torch.equal(one(x, 5), many(x, 5))


def test_weights_are_multiplied_by_the_threshold_of_the_channel_they_read() -> None:
    height = torch.tensor([2.0, 3.0])
    conv, grouped = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3, groups=2)
    flat, scale = nn.Linear(6, 1), Scale(torch.ones(2), None)
    assert torch.equal(_scaled(conv, height, None).weight, conv.weight * height.view(1, 2, 1, 1))
    assert torch.equal(
        _scaled(grouped, height, None).weight, grouped.weight * torch.tensor([2.0, 2, 3, 3]).view(4, 1, 1, 1)
    )
    assert torch.equal(_scaled(flat, height, None).weight, flat.weight * torch.tensor([2.0, 2, 2, 3, 3, 3]))
    assert torch.equal(_scaled(scale, height, None).weight, height)


def test_thresholds_of_qcfs_are_kept() -> None:
    model = relu_net(soma=QcfsSoma, levels=4)
    model.soma.threshold.fill_(1.5)
    assert relu_graph(model).nodes["soma"].v_th.tolist() == [1.5] * 3


class Pooling(Single):
    def __init__(self) -> None:
        super().__init__(1.0)
        self.pool = nn.MaxPool2d(2)


class Doubled(ReluSoma):
    def fire(self, current: Tensor) -> Tensor:
        return 2 * current.relu()


class Direct(nn.Module):
    """A layer that reads another one without a synapse."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = Conv2d(1, 2, 1), ReluSoma(2), ReluSoma(2, normalize=False)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.second(self.first(self.conv(as_sequence(x, timesteps)))).flatten(2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: build("resnet8"), r"the neurons of soma \(Soma\) are not ReLUs; give a network that was trained with"),
        (lambda: relu_net(soma=Doubled), r"the neurons of soma \(Doubled\) are not ReLUs"),
        (Pooling, r"pool \(MaxPool2d\) takes the largest of several inputs, .* train the network with average pooling"),
        (lambda: relu_net(SEWBlock), r"adds outputs of several layers \(.*\), whose spikes stand for different values"),
        (Direct, "'second' reads the spikes of 'first' without a synapse in between; add one"),
    ],
)
def test_what_cannot_be_converted(make: type[nn.Module], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^convert: .*{sentence}"):
        relu_graph(make())


def test_a_network_without_layers() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decode = nn.Linear(4, 2)

        def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
            return self.decode(as_sequence(x, timesteps).flatten(2))

    with pytest.raises(ValueError, match=r"^convert: the network has no layer of ReLUs$"):
        relu_graph(Linear())


def test_heights_pass_through_pools() -> None:
    graph = relu_graph(relu_net(PooledBlock, PooledHead))
    found = heights(graph, dict(zip(layers_of(graph), (2.0, 3.0, 4.0, 5.0, 6.0), strict=True)))
    assert (found["input"], found["stem"], found["body_2_pool"], found["head_pool"]) == (1, 1, 4, 5)


def test_a_threshold_is_positive() -> None:
    with pytest.raises(ValueError, match="expected a threshold above 0, got 0"):
        Neurons(0.0)
