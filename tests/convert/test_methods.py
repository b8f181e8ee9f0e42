"""Conversion as a whole: rates become activations, and every way to run the network agrees."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rheobase.convert import METHODS, convert
from rheobase.convert.graph import relu_graph
from rheobase.convert.layers import Layers
from rheobase.deploy.agreement import record
from rheobase.deploy.formats import native, nir, onnx
from rheobase.deploy.network import Network
from rheobase.deploy.nirfile import read
from rheobase.deploy.simulate import simulate
from rheobase.models import BasicBlock, PlainBlock, PooledBlock, PooledHead, build
from rheobase.nn import QcfsSoma
from tests.convert.networks import relu_net
from tests.deploy.networks import images

RELU = [name for name in METHODS if name != "qcfs"]


def converted(method: str, timesteps: int = 6, block: type = BasicBlock, **options: Any) -> Network:
    model = relu_net(block, PooledHead, **({"soma": QcfsSoma} if method == "qcfs" else {}))
    return convert(model, method, timesteps, None if method == "qcfs" else images(9, 2, 8, seed=3), **options)


@pytest.mark.parametrize("block", [PlainBlock, PooledBlock, BasicBlock])
def test_rates_converge_to_activations(block: type) -> None:
    """The error of rates falls as 1 / T: what a neuron has not sent yet stays bounded."""
    model, x = relu_net(block), images(3, 2, 8, seed=3)
    graph = relu_graph(model)
    network = convert(model, "data-norm", 1, x, percentile=100.0)
    layers, activations = Layers(graph, x, 1), {}
    for name in layers:
        activations[name] = torch.cat([current.relu() for current in layers.currents(name)], 1)[0]
        layers.send(name, [activations[name][None]])
    steps = (64, 128, 256, 512)
    outputs = dict(network.run(x, steps[-1]))
    thresholds = {name: network.nodes[name].v_th[0] for name in activations}
    rates = {name: threshold * outputs[name] for name, threshold in thresholds.items()}
    expected = {**activations, "logits": model(x, 1)[0]}
    for name, values in {**rates, "logits": network(x, steps[-1])}.items():
        found = [(values[:t].mean(0) - expected[name]).abs().mean().item() for t in steps]
        slope = np.polyfit(np.log(steps), np.log(found), 1)[0]
        assert -1.3 < slope < -0.8, (name, slope, found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("block", [PlainBlock, BasicBlock])
def test_every_way_to_run_it_fires_the_same_spikes(method: str, block: type, tmp_path: Path) -> None:
    """Whole sequences, single steps, the event-driven simulator, ONNX and our own file, in float64."""
    for needed in ("onnx", "onnxruntime"):
        pytest.importorskip(needed)
    network, x, timesteps = converted(method, block=block), images(2, 2, 8), 11
    expected = record(network, x, timesteps)
    assert all(spikes.any() for spikes in list(expected.spikes.values())[:3])
    state, logits = None, []
    for _ in range(timesteps):
        out, state = network.step(x, state)
        logits.append(out)
    torch.testing.assert_close(torch.stack(logits), expected.logits, rtol=1e-9, atol=1e-12)
    native.save(network, tmp_path / "network.safetensors")
    again = record(native.load(tmp_path / "network.safetensors"), x, timesteps)
    onnx.write(network, tmp_path / "network.onnx", (2, 8, 8))
    torch.testing.assert_close(onnx.load(tmp_path / "network.onnx")(x, timesteps), expected.logits)
    graph = nir.to_graph(network, (2, 8, 8))
    for i in range(len(x)):
        found = simulate(graph, x[i].numpy(), timesteps)
        for name, spikes in expected.spikes.items():
            assert np.array_equal(found.spikes[name].reshape(timesteps, -1), spikes[:, i].numpy())
            assert torch.equal(again.spikes[name], spikes)


def test_nir_where_it_can_say_the_neuron(tmp_path: Path) -> None:
    pytest.importorskip("nir")
    network, x = converted("data-norm", reset="hard"), images(1, 2, 8)
    nir.write(network, tmp_path / "network.nir", (2, 8, 8))
    found, expected = simulate(read(tmp_path / "network.nir"), x[0].numpy(), 6), record(network, x, 6)
    for name, spikes in expected.spikes.items():
        assert np.array_equal(found.spikes[name].reshape(6, -1), spikes[:, 0].numpy())
    with pytest.raises(ValueError, match="whose neurons cannot have a soft reset; export to onnx or native"):
        nir.write(converted("rmp"), tmp_path / "other.nir", (2, 8, 8))
    assert not (tmp_path / "other.nir").exists()


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("best", {}, "unknown method 'best'; choose one of data-norm, spike-norm, rmp, calibrated, qcfs"),
        ("rmp", {"timesteps": 0}, "convert: expected at least one timestep, got 0"),
        ("rmp", {"reset": "hard"}, "method rmp has no reset; leave it out"),
        ("rmp", {"images": None}, "method rmp chooses thresholds by training images, but there are none; give some"),
        ("rmp", {"images": torch.zeros(0, 2, 8, 8)}, "method rmp chooses thresholds by training images, but there are"),
        ("rmp", {"images": torch.zeros(2, 3, 2, 8, 8)}, "convert: expected images [N, C, H, W], got [2, 3, 2, 8, 8]"),
        ("qcfs", {}, "method qcfs needs a network that was trained with neuron=qcfs; choose another method for this"),
        ("data-norm", {"reset": "none"}, "unknown reset 'none'; choose one of hard, soft"),
    ],
)
def test_mistakes(method: str, options: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"timesteps": 4, "images": images(3, 2, 8), **options}
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        convert(relu_net(), method, **given)


@pytest.mark.parametrize("method", RELU)
def test_networks_of_qcfs_have_their_own_method(method: str) -> None:
    with pytest.raises(ValueError, match="has thresholds of its own; convert it with the method qcfs"):
        convert(relu_net(soma=QcfsSoma), method, 4, images(3, 2, 8))


def test_the_model_stays_what_it_was() -> None:
    model = build("resnet8", soma=QcfsSoma).eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    convert(model, "qcfs", 3)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
