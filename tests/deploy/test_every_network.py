"""Every kind of residual connection with every neuron: all versions and files fire the same spikes, in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase.deploy import nirfile
from rheobase.deploy.agreement import Record, agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import native
from rheobase.deploy.formats import nir as rheobase_nir
from rheobase.deploy.formats import onnx as rheobase_onnx
from rheobase.deploy.lower import lower
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF
from rheobase.deploy.quantize import quantize
from rheobase.deploy.simulate import simulate
from rheobase.models.blocks import (
    BasicBlock,
    DenseHead,
    GlobalHead,
    MSBlock,
    PlainBlock,
    PooledBlock,
    PooledHead,
    SEWBlock,
    SEWBottleneck,
)
from tests.deploy.networks import images, styled

pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
pytest.importorskip("onnxruntime", reason="the extra rheobase[onnx] is not installed")

SHAPE, STEPS = (2, 8, 8), 3
BLOCKS = [PlainBlock, PooledBlock, BasicBlock, SEWBlock, SEWBottleneck, MSBlock]
NEURONS = {
    "paper": {},
    "soft": {"reset": "soft"},
    "channel": {"learn_decay": "channel"},
    "integrate": {"decay": 1.0},
    "all at once": {"learn_decay": "channel", "reset": "soft"},
    "initial": {},
}
PAIRS = [
    *((MSBlock, neuron) for neuron in NEURONS),
    *((block, neuron) for block in (SEWBlock, PooledBlock) for neuron in ("paper", "all at once")),
    (SEWBottleneck, "paper"),
]


def with_initial(network: Network) -> Network:
    """Half a threshold for some layers of neurons, one for every channel for others."""
    torch.manual_seed(3)
    for i, (name, node) in enumerate(network.nodes.items()):
        if isinstance(node, LIF):
            initial = 0.25 if i % 2 else torch.rand_like(node.v_th) - 0.3
            network.nodes[name] = LIF(node.decay, node.v_th, reset=node.reset, initial=initial)
    return network


def made(block: type, neuron: str) -> Network:
    network = fold(styled(block, **NEURONS[neuron]))
    return with_initial(network) if neuron == "initial" else network


def assert_same(expected: Record, found: Record) -> None:
    result = agreement(expected, found)
    assert set(result.layers.values()) == {0.0}
    assert result.logits < 1e-9


def assert_simulated(graph: nirfile.Graph, x: torch.Tensor, expected: Record) -> None:
    result = simulate(graph, x[0].numpy(), STEPS)
    assert set(result.spikes) == set(expected.spikes)
    for name, spikes in result.spikes.items():
        np.testing.assert_array_equal(spikes.reshape(STEPS, -1), expected.spikes[name][:, 0].numpy(), name)
    np.testing.assert_allclose(result.logits, expected.logits[:, 0].numpy(), atol=1e-9)


@pytest.mark.parametrize(
    ("block", "neuron", "head"),
    [
        *((block, neuron, GlobalHead) for block in BLOCKS for neuron in NEURONS if neuron != "initial"),
        *((block, "paper", head) for block in (SEWBlock, MSBlock) for head in (PooledHead, DenseHead)),
    ],
)
def test_folding_keeps_every_spike(block, neuron, head):
    model, x = styled(block, head, **NEURONS[neuron]), images(3, 2, 8)
    network = fold(model)
    expected = record(model, x, STEPS)
    assert min(agreement(expected, expected).rates.values()) > 0.02
    assert_same(expected, record(network, x, STEPS))
    assert torch.equal(network(x, STEPS), record(network, x, STEPS).logits)


@pytest.mark.parametrize(("block", "neuron"), PAIRS)
def test_every_version_and_file_fires_the_same_spikes(tmp_path: Path, block, neuron):
    network, x = made(block, neuron), images(3, 2, 8)
    exact = record(network, x, STEPS)
    for version in (network, lower(network, SHAPE), quantize(network, x, STEPS)):
        expected = record(version, x, STEPS)
        if not version.integer:
            assert_same(exact, expected)

        state, logits = None, []
        for _ in range(STEPS):
            y, state = version.step(x, state)
            logits.append(y)
        torch.testing.assert_close(torch.stack(logits), expected.logits, rtol=0, atol=1e-9)

        native.save(version, tmp_path / "net.safetensors")
        assert_same(expected, record(native.load(tmp_path / "net.safetensors"), x, STEPS))
        rheobase_onnx.write(version, tmp_path / "net.onnx", SHAPE)
        found = rheobase_onnx.load(tmp_path / "net.onnx")(x, STEPS)
        torch.testing.assert_close(found, expected.logits, rtol=0, atol=1e-9)
        assert_simulated(rheobase_nir.to_graph(version, SHAPE), x, expected)


@pytest.mark.parametrize("form", rheobase_nir.FORMS)
@pytest.mark.parametrize(
    ("block", "neuron"), [(SEWBlock, "paper"), (PooledBlock, "paper"), (MSBlock, "channel"), (MSBlock, "integrate")]
)
def test_nir_files_fire_the_same_spikes(tmp_path: Path, block, neuron, form):
    network, x = made(block, neuron), images(3, 2, 8)
    expected, path = record(network, x, STEPS), tmp_path / "net.nir"
    rheobase_nir.write(network, path, SHAPE, form)
    assert_same(expected, record(rheobase_nir.load(path), x, STEPS))
    graph = nirfile.read(path)
    assert_simulated(graph, x, expected)
    kinds = {node.kind for node in graph.nodes.values()}
    assert ("IF" in kinds, "LIF" in kinds) == (neuron == "integrate", neuron != "integrate")
    if form == "canonical":
        integer = quantize(network, x, STEPS)
        rheobase_nir.write(integer, path, SHAPE)
        assert_same(record(integer, x, STEPS), record(rheobase_nir.load(path), x, STEPS))
        assert_simulated(nirfile.read(path), x, record(integer, x, STEPS))


@pytest.mark.parametrize(("neuron", "what"), [("soft", "a soft reset"), ("initial", "an initial potential")])
def test_what_nir_cannot_say_is_one_sentence(tmp_path: Path, neuron, what):
    network = made(SEWBlock, neuron)
    with pytest.raises(
        ValueError, match=f"^cannot express 'soma' in NIR, whose neurons cannot have {what}; export to onnx or native"
    ):
        rheobase_nir.write(network, tmp_path / "net.nir", SHAPE)
    assert not list(tmp_path.iterdir())
