import resource

import numpy as np
import pytest
import torch
from torch import nn

from rheobase.analysis.fanout import fan_out
from rheobase.deploy import nirfile
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.convolution import convolution
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir as rheobase_nir
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.simulate import simulate
from tests.deploy.networks import images, tiny

nir = pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
SHAPE = (2, 7, 7)


@pytest.mark.parametrize("global_pool", [False, True])
@pytest.mark.parametrize("form", rheobase_nir.FORMS)
def test_a_file_read_back_fires_the_same_spikes(tmp_path, form, global_pool):
    model = tiny(global_pool=global_pool, decay=0.3, v_th=0.7)
    rheobase_nir.write(fold(model), tmp_path / "net.nir", SHAPE, form)
    x = images(3, 2, 7)
    result = agreement(record(model, x, 4), record(rheobase_nir.load(tmp_path / "net.nir"), x, 4))
    assert set(result.layers.values()) == {0.0}
    assert result.logits < 1e-9


@pytest.mark.parametrize("form", rheobase_nir.FORMS)
def test_nir_itself_accepts_the_file_and_finds_the_same_numbers(tmp_path, form):
    network = fold(tiny())
    rheobase_nir.write(network, tmp_path / "net.nir", SHAPE, form)
    theirs = nir.read(tmp_path / "net.nir")  # checks all shapes against each other
    ours = nirfile.read(tmp_path / "net.nir")
    assert set(theirs.nodes) == set(ours.nodes)
    for name, node in ours.nodes.items():
        for key, values in node.values.items():
            if hasattr(theirs.nodes[name], key) and key != "shape":
                np.testing.assert_array_equal(values, getattr(theirs.nodes[name], key))
    assert {(a, b) for b, node in ours.nodes.items() for a in node.sources} == set(theirs.edges)
    assert theirs.metadata["dt"] == rheobase_nir.DT
    assert theirs.metadata["form"] == form
    assert "forward Euler" in theirs.metadata["scheme"]


def test_identity_shortcuts_are_scales_again_and_cost_as_little(tmp_path):
    network = fold(tiny())
    rheobase_nir.write(network, tmp_path / "net.nir", SHAPE)
    found = rheobase_nir.load(tmp_path / "net.nir")
    kinds = {name: type(node) for name, node in network.nodes.items()}
    assert Scale in kinds.values()
    assert {name: type(node) for name, node in found.nodes.items() if isinstance(node, Scale)}.items() <= kinds.items()
    assert all(node.bias is None for node in found.nodes.values() if isinstance(node, Scale)), "no bias of zeros"
    assert fan_out(found.to("meta"), SHAPE) == fan_out(network.to("meta"), SHAPE)


@pytest.mark.parametrize(("dense", "stride", "padding"), [(True, 1, 0), (False, 2, 0), (False, 1, 1)])
def test_other_convolutions_of_one_pixel_stay_convolutions(tmp_path, dense, stride, padding):
    conv = nn.Conv2d(3, 3, 1, stride, padding, dtype=torch.float64)
    if not dense:
        conv.weight.data = torch.eye(3, dtype=torch.float64).view(3, 3, 1, 1) * 0.3
    network = Network({"conv": conv}, {"conv": [INPUT]}).eval()
    rheobase_nir.write(network, tmp_path / "net.nir", (3, 7, 7))
    found = rheobase_nir.load(tmp_path / "net.nir")
    assert type(found.nodes["conv"]) is not Scale
    x = images(4, 3, 7)
    torch.testing.assert_close(found(x, timesteps=1), network(x, timesteps=1), rtol=0, atol=1e-12)


def test_a_full_disk_is_reported_in_one_sentence_and_leaves_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as found:
            rheobase_nir.write(fold(tiny()), tmp_path / "net.nir", SHAPE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (found.value.filename, found.value.strerror) == (str(tmp_path / "net.nir"), "File too large")
    assert not [*tmp_path.iterdir()]


def test_branches_are_edges_into_one_neuron_node():
    graph = rheobase_nir.to_nir(fold(tiny()), SHAPE)
    assert {a for a, b in graph.edges if b == "body_0_soma2"} == {"body_0_conv2", "body_0_shortcut"}
    shortcut = graph.nodes["body_0_shortcut"].weight[:, :, 0, 0]
    np.testing.assert_array_equal(shortcut, np.diag(np.diag(shortcut)))


def test_neuron_parameters():
    network = fold(tiny(decay=0.2, v_th=0.5))
    canonical, portable = (rheobase_nir.to_nir(network, SHAPE, form).nodes["soma"] for form in rheobase_nir.FORMS)
    for lif, r, v_threshold in ((canonical, 1.25, 0.5), (portable, 1.0, 0.4)):
        np.testing.assert_allclose(lif.tau, 1.25e-4)
        np.testing.assert_allclose(lif.r, r)
        np.testing.assert_allclose(lif.v_threshold, v_threshold)
        assert lif.v_threshold.shape == (4, 7, 7)
        assert not lif.v_leak.any()
        assert not lif.v_reset.any()


def test_portable_has_convolutions_only():
    graph = rheobase_nir.to_nir(fold(tiny()), SHAPE, "portable")
    assert {type(node) for node in graph.nodes.values()} == {nir.Input, nir.Conv2d, nir.LIF, nir.Output}


def test_what_nir_cannot_express_is_named():
    nodes = {"scale": Scale(torch.ones(2), None), "neurons": LIF(torch.tensor([1.0, 0.5]), torch.ones(2))}
    with pytest.raises(ValueError, match=r"'neurons' in NIR: either all neurons of a layer leak, or none"):
        rheobase_nir.to_nir(Network(nodes, {"scale": [INPUT], "neurons": ["scale"]}), SHAPE)
    nodes = {"grouped": nn.Conv2d(2, 2, 3, groups=2), "neurons": LIF(0.25, torch.ones(2))}
    with pytest.raises(ValueError, match="'grouped'"):
        rheobase_nir.to_nir(Network(nodes, {"grouped": [INPUT], "neurons": ["grouped"]}), SHAPE)
    network = fold(tiny())
    network.nodes["head_pool"].divisor_override = 3
    with pytest.raises(ValueError, match=r"'head_pool'.*cannot divide by 3"):
        rheobase_nir.to_nir(network, SHAPE)
    with pytest.raises(ValueError, match="unknown form 'other'"):
        rheobase_nir.to_nir(fold(tiny()), SHAPE, "other")


def test_sum_pools_stay_sum_pools(tmp_path):
    model = tiny()
    model.head.pool.divisor_override = 1
    network = fold(model)
    x = images(3, 2, 7)
    expected = record(model, x, 4)
    for form in rheobase_nir.FORMS:
        rheobase_nir.write(network, tmp_path / "net.nir", SHAPE, form)
        loaded = rheobase_nir.load(tmp_path / "net.nir")
        assert set(agreement(expected, record(loaded, x, 4)).layers.values()) == {0.0}
        again = rheobase_nir.to_nir(loaded, SHAPE)
        kinds = {type(node) for node in again.nodes.values()}
        assert (nir.SumPool2d in kinds) == (form == "canonical")


def test_foreign_neurons_are_refused(tmp_path):
    graph = rheobase_nir.to_nir(fold(tiny()), SHAPE)
    graph.nodes["body_1_soma"].v_reset += 0.1
    nir.write(tmp_path / "net.nir", graph)
    with pytest.raises(ValueError, match=r"'body_1_soma'.*v_reset"):
        rheobase_nir.load(tmp_path / "net.nir")
    graph = rheobase_nir.to_nir(fold(tiny()), SHAPE)
    graph.nodes["body_1_soma"].tau[2, 0, 1] *= 2
    nir.write(tmp_path / "net.nir", graph)
    with pytest.raises(ValueError, match=r"'body_1_soma'.*one tau per channel"):
        rheobase_nir.load(tmp_path / "net.nir")


def test_neurons_that_do_not_leak_are_integrate_and_fire(tmp_path):
    graph = rheobase_nir.to_nir(fold(tiny(decay=1.0, v_th=0.7)), SHAPE)
    neurons = graph.nodes["soma"]
    assert isinstance(neurons, nir.IF)
    assert set(neurons.r.ravel() * rheobase_nir.DT) == {1.0}
    assert set(neurons.v_threshold.ravel()) == {0.7}
    neurons.r *= 2  # as far as half the threshold
    nir.write(tmp_path / "net.nir", graph)
    loaded = rheobase_nir.load(tmp_path / "net.nir").nodes["soma"]
    assert loaded.decay == 1.0
    assert loaded.v_th.tolist() == [0.35] * 4


def test_time_must_be_stated(tmp_path):
    graph = rheobase_nir.to_nir(fold(tiny()), SHAPE)
    del graph.metadata["dt"]
    nir.write(tmp_path / "net.nir", graph)
    with pytest.raises(ValueError, match="do not state dt"):
        rheobase_nir.load(tmp_path / "net.nir")


def test_decays_of_channels_that_differ_a_little_stay_different():
    decays = torch.tensor([0.3, 0.3001, 0.305], dtype=torch.float64)
    nodes = {
        "synapse": convolution(torch.randn(3, 2, 3, 3).double(), None, padding=1),
        "neurons": LIF(decays, torch.full((3,), 0.5).double()),
        "readout": convolution(torch.randn(5, 3, 1, 1).double(), None),
    }
    inputs = {"synapse": [INPUT], "neurons": ["synapse"], "readout": ["neurons"]}
    found = rheobase_nir.from_graph(rheobase_nir.to_graph(Network(nodes, inputs), (2, 4, 4)), "here").nodes["neurons"]
    torch.testing.assert_close(found.decay, decays, rtol=1e-12, atol=0)


def test_a_pool_over_all_pixels_has_their_height_and_width():
    nodes = {"pool": nn.AdaptiveAvgPool2d(1), "readout": convolution(torch.randn(5, 2, 1, 1).double(), None)}
    network = Network(nodes, {"pool": [INPUT], "readout": ["pool"]})
    graph = rheobase_nir.to_graph(network, (2, 4, 6))
    assert graph.nodes["pool"].values["kernel_size"].tolist() == [4, 6]
    x = torch.randn(1, 2, 4, 6, dtype=torch.float64)
    np.testing.assert_allclose(simulate(graph, x[0].numpy(), 1).logits, network(x, 1)[:, 0].numpy(), atol=1e-12)
