import pytest
import torch
from torch import nn

from rheobase.deploy.folding import fold
from rheobase.deploy.lower import node_shapes
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.shapes import outputs, shapes
from rheobase.models import build
from tests.deploy.networks import SMALL, tiny, trained_like


@pytest.mark.parametrize(("name", "options", "size", "timesteps"), SMALL[:4], ids=[row[0] for row in SMALL[:4]])
def test_shapes_are_those_of_the_network_at_work(name, options, size, timesteps):
    network, shape = fold(trained_like(name, size, **options)), (options["in_channels"], size, size)
    assert shapes(network, shape) == node_shapes(network, shape)
    assert outputs(network, shape, timesteps, 1000) == options["num_classes"]


def chain(**nodes):
    names = [INPUT, *nodes]
    return Network(nodes, {name: [before] for before, name in zip(names, nodes, strict=False)})


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (chain(a=nn.Conv2d(3, 4, 3)), r"node 'a': a Conv2d cannot read an input of the shape \[2, 7, 9\]"),
        (chain(a=nn.Conv2d(2, 4, 8)), "a Conv2d cannot read"),
        (chain(a=nn.Conv2d(2, 4, 3, dilation=4)), "a Conv2d cannot read"),
        (chain(a=nn.AvgPool2d(10)), "an? AvgPool2d cannot read"),
        (chain(a=nn.Flatten(), b=nn.Linear(125, 3)), r"node 'b': a Linear cannot read an input of the shape \[126\]"),
        (chain(a=nn.Linear(9, 3)), "a Linear cannot read"),
        (chain(a=Scale(torch.ones(3), None)), "a Scale cannot read"),
        (chain(a=LIF(0.5, torch.ones(7))), "a LIF cannot read"),
        (chain(a=nn.Flatten(), b=nn.AdaptiveAvgPool2d(1)), "a AdaptiveAvgPool2d cannot read"),
    ],
)
def test_layers_that_do_not_fit_are_named(network, words):
    with pytest.raises(ValueError, match=words):
        shapes(network, (2, 7, 9))


def test_inputs_of_different_shapes_are_named():
    nodes = {"a": nn.Conv2d(2, 4, 1), "b": nn.Conv2d(2, 4, 3), "c": LIF(0.5, torch.ones(4))}
    network = Network(nodes, {"a": [INPUT], "b": [INPUT], "c": ["a", "b"]})
    with pytest.raises(ValueError, match=r"node 'c': its inputs differ in shape: \[4, 5, 7\], \[4, 7, 9\]"):
        shapes(network, (2, 7, 9))


def test_what_would_take_too_much_memory_is_refused_before_it_runs():
    wide = nn.Conv2d(2, 2, 1, padding=1023)
    network = chain(**{f"conv{i}": wide for i in range(9)})
    with pytest.raises(ValueError, match=r"4 timesteps of its layers would take \d+ MiB of memory"):
        outputs(network, (2, 7, 9), 4, 1000)
    with pytest.raises(ValueError, match="1000000 timesteps of its layers would take"):
        outputs(fold(tiny()), (2, 7, 7), 10**6, 1000)


def test_only_what_is_kept_at_once_counts(monkeypatch):
    """Twenty layers in a row, of which two are in memory at a time."""
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "1")
    network = chain(**{f"conv{i}": nn.Conv2d(2, 2, 1) for i in range(20)})
    assert outputs(network, (2, 100, 100), 1, 1000) == 20_000


@pytest.mark.parametrize(
    ("dtype", "needed"),
    [(torch.float16, 4 * 2 * 5), (torch.float32, 4 * 2 * 5), (torch.float64, 8 * (2 * 5 + 2 * 9))],
    ids=["float16", "float32", "float64"],
)
def test_memory_by_the_type_of_the_weights(dtype, needed, monkeypatch):
    """Two channels in and three out of 128 x 128, whose windows of 2 x 9 values torch writes out in float64 alone."""
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "1")
    network = chain(a=nn.Conv2d(2, 3, 3, padding=1).to(dtype))
    with pytest.raises(ValueError, match=f"8 timesteps of its layers would take {needed // 8} MiB of memory"):
        outputs(network, (2, 128, 128), 8, 1000)


def test_a_converted_network_of_many_steps_is_not_too_large():
    """ResNet-19 at T = 1024: its file has 56 MiB."""
    network = fold(build("resnet19", num_classes=10, in_channels=3, image_size=32))
    size = sum(p.numel() * p.element_size() for p in network.parameters())
    assert outputs(network, (3, 32, 32), 1024, size) == 10
