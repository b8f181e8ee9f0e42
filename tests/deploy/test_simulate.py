import subprocess
import sys

import numpy as np
import pytest
import torch

from rheobase.deploy import nirfile, simulate
from rheobase.deploy.agreement import record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir as rheobase_nir
from tests.deploy.networks import images, tiny

pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


@pytest.fixture(params=rheobase_nir.FORMS)
def graph(request, tmp_path):
    rheobase_nir.write(fold(tiny()), tmp_path / "net.nir", (2, 7, 7), request.param)
    return nirfile.read(tmp_path / "net.nir")


def one_synapse(weight, bias, *, kind="Conv2d", shape, out, **values):
    """Input, one synapse, output."""
    node = {"weight": np.asarray(weight, float), "bias": np.asarray(bias, float)}
    node |= {key: np.asarray(v) for key, v in values.items()}
    nodes = {
        "input": nirfile.Node("Input", (), shape, {}),
        "synapse": nirfile.Node(kind, ("input",), out, node),
        "output": nirfile.Node("Output", ("synapse",), out, {}),
    }
    return nirfile.Graph(nodes, {"dt": 1e-4})


def test_spikes_equal_the_trained_network(graph):
    model = tiny()
    x = images(3, 2, 7)
    expected = record(model, x, 4)
    for i in range(3):
        result = simulate.simulate(graph, x[i].numpy(), 4)
        assert set(result.spikes) == set(expected.spikes)
        for name, spikes in result.spikes.items():
            np.testing.assert_array_equal(spikes.reshape(4, -1), expected.spikes[name][:, i].numpy())
        np.testing.assert_allclose(result.logits, expected.logits[:, i].numpy(), atol=1e-9)


def test_a_sequence_equals_the_trained_network(graph):
    model = tiny()
    sequence = torch.stack([images(1, 2, 7, seed) for seed in range(3)])
    result = simulate.simulate(graph, sequence[:, 0].numpy())
    np.testing.assert_allclose(result.logits, model(sequence)[:, 0].numpy(), atol=1e-9)


@pytest.mark.parametrize(("stride", "padding"), [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((2, 3), (0, 2))])
def test_convolution_of_events(stride, padding):
    conv = torch.nn.Conv2d(2, 4, 3, stride, padding).double().requires_grad_(False)
    x = (torch.rand(2, 7, 6) < 0.3).double()
    expected = conv(x[None])[0]
    window = {"stride": stride, "padding": padding}
    graph = one_synapse(conv.weight.numpy(), conv.bias.numpy(), shape=(2, 7, 6), out=tuple(expected.shape), **window)
    result = simulate.simulate(graph, x.numpy(), 1)
    np.testing.assert_allclose(result.logits[0], expected.numpy().ravel(), atol=1e-12)


def test_counts_by_hand():
    # two spikes in the middle of a 5 x 5 image reach 9 places each; 3 of 4 outgoing weights are not zero
    weight = np.ones((2, 2, 3, 3))
    weight[1, 0] = 0
    options = {"shape": (2, 5, 5), "out": (2, 5, 5), "stride": (1, 1), "padding": (1, 1)}
    x = np.zeros((2, 5, 5))
    x[0, 2, 2] = x[1, 2, 2] = 1
    done = simulate.simulate(one_synapse(weight, [0, 0], **options), x, 3).operations["synapse"]
    assert (done.additions, done.multiplications) == (3 * 27, 0)
    # a corner is reached by 4 places of the kernel; one bias that is not zero; values other than 1 multiply, each alone
    x = np.zeros((2, 5, 5))
    x[1, 0, 0], x[1, 4, 4] = 0.5, 1
    done = simulate.simulate(one_synapse(weight, [0, 0.5], **options), x, 1).operations["synapse"]
    assert (done.additions, done.multiplications) == (4 * 2 + 25, 8)


def test_neurons_count_their_charged_members():
    full = np.ones((1, 1, 3))
    values = {"tau": full * 4e-4 / 3, "r": full * 4 / 3, "v_leak": 0 * full, "v_threshold": full / 2}
    nodes = {
        "input": nirfile.Node("Input", (), (1, 1, 3), {}),
        "neurons": nirfile.Node("LIF", ("input",), (1, 1, 3), values | {"v_reset": 0 * full}),
        "output": nirfile.Node("Output", ("neurons",), (1, 1, 3), {}),
    }
    result = simulate.simulate(nirfile.Graph(nodes, {"dt": 1e-4}), np.array([[[0.0, 0.3, 0.6]]]), 3)
    # u stays 0 / grows as 0.3, 0.375, 0.39375 / is 0.6 and reset: only the second neuron keeps a charge
    assert result.spikes["neurons"][:, 0, 0].tolist() == [[False, False, True]] * 3
    assert (result.operations["neurons"].multiplications, result.operations["neurons"].additions) == (2, 2)


def test_neurons_leak_and_reset_to_the_values_of_the_file():
    full = np.ones((1, 1, 2))
    values = {"tau": full * 4e-4 / 3, "r": full * 4 / 3, "v_leak": full * 0.2, "v_threshold": full / 2}
    nodes = {
        "input": nirfile.Node("Input", (), (1, 1, 2), {}),
        "neurons": nirfile.Node("LIF", ("input", "input"), (1, 1, 2), values | {"v_reset": full * 0.1}),
        "output": nirfile.Node("Output", ("neurons",), (1, 1, 2), {}),
    }
    x = np.array([[0.0, 0.2], [0.0, 0.17], [0.0, 0.0]]).reshape(3, 1, 1, 2)
    result = simulate.simulate(nirfile.Graph(nodes, {"dt": 1e-4}), x)
    # u = v / 4 + 2 x + 0.15: the second neuron has 0.55 and is reset to 0.1, then 0.515, then 0.175
    assert result.spikes["neurons"][:, 0, 0].tolist() == [[False, True], [False, True], [False, False]]
    # both are charged before the last two steps; at each of three, two inputs of two neurons are added up
    assert (result.operations["neurons"].multiplications, result.operations["neurons"].additions) == (4, 4 + 6)


def test_silence_costs_only_biases(graph):
    spiking = simulate.simulate(graph, images(1, 2, 7)[0].numpy(), 2).operations
    silent = simulate.simulate(graph, np.zeros((2, 7, 7)), 2).operations
    assert silent["stem"].multiplications == 0 < spiking["stem"].multiplications
    assert silent["stem"].additions == 2 * 4 * 7 * 7  # the bias of every neuron at every step


def test_spikes_are_never_multiplied(tmp_path):
    rheobase_nir.write(fold(tiny()), tmp_path / "net.nir", (2, 7, 7), "portable")
    graph = nirfile.read(tmp_path / "net.nir")
    operations = simulate.simulate(graph, images(1, 2, 7)[0].numpy(), 3).operations
    synapses = {name: done for name, done in operations.items() if graph.nodes[name].kind == "Conv2d"}
    assert synapses.pop("stem").multiplications > 0  # the image itself is no spike
    assert not any(done.multiplications for done in synapses.values())
    assert sum(done.additions for done in synapses.values()) > 0


def test_wrong_input_is_explained(graph):
    for x, timesteps in [(np.zeros((2, 7, 6)), 3), (np.zeros((2, 7, 7)), None), (np.zeros((4, 2, 7, 7)), 4)]:
        with pytest.raises(ValueError, match=r"expected an image \[2, 7, 7\]"):
            simulate.simulate(graph, x, timesteps)


def test_needs_numpy_and_h5py_alone(tmp_path):
    rheobase_nir.write(fold(tiny()), tmp_path / "net.nir", (2, 7, 7))
    program = f"""
import sys
sys.modules["torch"] = sys.modules["nir"] = None
import numpy
from rheobase.deploy.nirfile import read
from rheobase.deploy.simulate import simulate
print(simulate(read({str(tmp_path / "net.nir")!r}), numpy.ones((2, 7, 7)), 2).logits.shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(2, 5)", done.stderr
