"""What a layer reads at some places is what its convolution multiplies there."""

import torch
from torch import nn

from rheobase.deploy import calibration
from rheobase.deploy.calibration import Calibration
from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF


def network() -> Network:
    torch.manual_seed(0)
    nodes: dict[str, nn.Module] = {
        "first": convolution(torch.randn(3, 2, 3, 3).double(), None, stride=2, padding=1),
        "neurons": LIF(0.25, torch.full((3,), 0.5).double()),
        "second": convolution(torch.randn(4, 3, 2, 3).double(), None, stride=(1, 2), padding=(0, 2), dilation=(3, 2)),
        "others": LIF(0.25, torch.full((4,), 0.5).double()),
        "readout": convolution(torch.randn(5, 4, 1, 1).double(), None),
    }
    inputs = {
        "first": [INPUT],
        "neurons": ["first"],
        "second": ["neurons"],
        "others": ["second"],
        "readout": ["others"],
    }
    return Network(nodes, inputs)


def test_reads_are_what_the_convolution_multiplies() -> None:
    exact, x = network(), torch.randn(1, 6, 2, 9, 8).double()  # any numbers will do here
    found = Calibration(exact, x, timesteps=3)
    values = dict(exact.run(x[0], 3))
    for name, layer in (("first", "neurons"), ("second", "others")):
        conv = exact.nodes[name]
        assert isinstance(conv, nn.Conv2d)
        read = found.inputs({name: conv})[name]
        current = read.double() @ conv.weight.flatten(1).T
        current = current.unflatten(0, values[name].shape[:2] + values[name].shape[3:])
        torch.testing.assert_close(current.movedim(-1, 2), values[name])
        found.fire(layer, exact.nodes)
        assert torch.equal(found.sent[layer], values[layer] > 0)
    assert set(found.sent) == {"others"}  # what nobody reads any more is gone


def test_many_places_are_a_sample(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(calibration, "PLACES", 7)
    exact = network()
    found = Calibration(exact, torch.randn(1, 6, 2, 9, 8).double(), timesteps=3)
    conv = exact.nodes["first"]
    assert isinstance(conv, nn.Conv2d)
    a, b = (found.inputs({"first": conv})["first"] for _ in range(2))
    assert a.shape == (7, 18)
    assert torch.equal(a, b)


def test_large_layers_are_calibrated_by_fewer_images(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    x = torch.arange(6.0).double().view(1, 6, 1, 1, 1).expand(1, 6, 2, 9, 8)
    monkeypatch.setattr(calibration, "MEMORY", 2 * 9 * 8 * 3 * 3)
    assert Calibration(network(), x, timesteps=3).sent[INPUT][0, :, 0, 0, 0].tolist() == [0, 2, 4]
