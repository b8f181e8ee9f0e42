import numpy as np
import pytest
import torch
from torch import nn

from rheobase.analysis.fanout import fan_out
from rheobase.deploy import nirfile
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import native
from rheobase.deploy.formats import nir as rheobase_nir
from rheobase.deploy.lower import diagonal
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale
from rheobase.deploy.pairs import FRACTION_BITS
from rheobase.deploy.quantize import int8_unit, quantize
from rheobase.deploy.simulate import simulate
from rheobase.models.blocks import MSBlock, PooledBlock, SEWBlock
from rheobase.nn import AvgPool2d, Conv2d, Soma, as_sequence
from tests.deploy.networks import images, styled, tiny

ONE = 2**FRACTION_BITS


def integer(t):
    assert torch.equal(t, t.round())
    return t.to(torch.int64).numpy()


def integer_network(network, x, timesteps):
    """The same network in integers alone: int8 weights, int32 sums, shifts; one image, spikes of every layer."""
    image = np.clip(np.rint(x.numpy() / network.input_unit), -network.input_largest, network.input_largest).astype(
        np.int64
    )
    potentials = {name: None for name, node in network.nodes.items() if isinstance(node, LIF)}
    spikes = {name: [] for name in potentials}
    for _ in range(timesteps):
        values = {INPUT: image}
        for name, node in network.nodes.items():
            if name in potentials:
                decay, start, threshold = (
                    integer((p + torch.zeros_like(node.v_th)) * ONE)[:, None, None]
                    for p in (node.decay, node.initial, node.v_th - 0.5 / ONE)
                )
                current = sum(values[source] for source in network.inputs[name])
                old = potentials[name] if potentials[name] is not None else start + np.zeros_like(current)
                u = (decay * old >> FRACTION_BITS) + current
                assert np.abs(u).max() < 2**31
                values[name] = (u > threshold).astype(np.int64)
                potentials[name] = np.where(values[name] == 1, u - threshold if node.reset == "soft" else 0, u)
                spikes[name].append(values[name].ravel())
            else:
                read = sum(values[source] for source in network.inputs[name])
                values[name] = integer_convolution(node, read, network.info["bits"])
    return {name: np.stack(s) for name, s in spikes.items()}, values[name].ravel()


def integer_convolution(node, x, bits):
    node = diagonal(node) if isinstance(node, Scale) else node
    weight = integer(node.weight * ONE)  # int8 weights, shifted to the accumulator; those of 16 bits as they are
    if bits == 8 and not torch.equal(node.weight, node.weight.round()):
        assert node.kernel_size == (1, 1) or node.in_channels == 2  # only identity scales and the first layer are wider
    assert np.abs(weight).max() <= 127 * ONE or node.kernel_size == (1, 1)  # at most 16 bits
    (sy, sx), (py, px) = node.stride, node.padding
    padded = np.pad(x, ((0, 0), (py, py), (px, px)))
    height, width = ((n - k) // s + 1 for n, k, s in zip(padded.shape[1:], node.kernel_size, (sy, sx), strict=True))
    out = np.zeros((len(weight), height, width), np.int64)
    for ky in range(node.kernel_size[0]):
        for kx in range(node.kernel_size[1]):
            window = padded[:, ky : ky + sy * height : sy, kx : kx + sx * width : sx]
            out += np.einsum("oc,chw->ohw", weight[:, :, ky, kx], window)
    return out if node.bias is None else out + integer(node.bias * ONE)[:, None, None]


@pytest.mark.parametrize(("decay", "bits"), [(0.25, 8), (0.5, 8), (0.3, 8), (0.3, 16)])
def test_it_is_an_integer_network(decay, bits):
    network = quantize(fold(tiny(decay=decay)), images(6, 2, 7, seed=5), 4, bits=bits)
    x = images(3, 2, 7)
    result = record(network, x, 4)
    for i in range(3):
        spikes, sums = integer_network(network, x[i], 4)
        for name, expected in spikes.items():
            np.testing.assert_array_equal(result.spikes[name][:, i].numpy(), expected)
        np.testing.assert_allclose(result.logits[-1, i].numpy(), sums / ONE * network.logit_unit)


@pytest.mark.parametrize("block", [SEWBlock, MSBlock, PooledBlock])
@pytest.mark.parametrize(("reset", "bits"), [("hard", 8), ("soft", 8), ("soft", 16)])
def test_so_are_those_of_other_residuals_and_neurons(block, reset, bits):
    exact = fold(styled(block, learn_decay="channel", reset=reset))
    last = exact.nodes["soma"]  # of MS networks, the first one of others
    initial = torch.linspace(-0.2, 0.3, len(last.v_th)).double()
    exact.nodes["soma"] = LIF(1.0, last.v_th, reset=reset, initial=initial)
    network, x = quantize(exact, images(6, 2, 8, seed=5), 4, bits=bits), images(2, 2, 8)
    result = record(network, x, 4)
    for i in range(2):
        spikes, sums = integer_network(network, x[i], 4)
        for name, expected in spikes.items():
            np.testing.assert_array_equal(result.spikes[name][:, i].numpy(), expected)
        np.testing.assert_allclose(result.logits[-1, i].numpy(), sums / ONE * network.logit_unit)
    found = agreement(record(exact, x, 4), result)
    assert found.layers["body_0_neurons" if block is MSBlock else "soma"] < 0.02
    assert max(found.layers.values()) < 0.25


def test_a_synapse_of_pooled_and_other_spikes_is_quantised():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.soma1 = Conv2d(2, 6, 3, padding=1, bias=False), Soma(6)
            self.pool = AvgPool2d(2)
            self.conv2, self.soma2 = Conv2d(6, 6, 3, stride=2, padding=1, bias=False), Soma(6)
            self.conv3, self.soma3 = Conv2d(6, 5, 3, padding=1, bias=False), Soma(5)
            self.decode = nn.Linear(5, 4)

        def forward(self, x, timesteps=None):
            s = self.soma1(self.conv1(as_sequence(x, timesteps)))
            s = self.pool(s) + self.soma2(self.conv2(s))
            return self.decode(self.soma3(self.conv3(s)).mean((-2, -1)))

    model = Mixed()
    x = images(5, 2, 8, seed=5)
    model.train()(x.float(), 3)
    network = quantize(fold(model.double().eval()), x, 3)
    assert {network.nodes[name].kernel_size for name in ("conv3", "conv3__1")} == {(6, 6), (3, 3)}
    for i in range(5):
        _, sums = integer_network(network, x[i], 3)
        np.testing.assert_allclose(record(network, x[i : i + 1], 3).logits[-1, 0], sums / ONE * network.logit_unit)


def test_a_stream_of_currents_has_one_unit():
    network, exact = quantize(fold(styled(MSBlock)), images(6, 2, 8), 3), fold(styled(MSBlock))
    readers = ["body_0_neurons", "body_1_neurons", "body_2_neurons"]
    stem = exact.nodes["stem"].weight * network.input_unit
    unit = int8_unit([stem, *(exact.nodes[f"body_{i}_conv2"].weight for i in (0, 1))])
    for name in readers:
        assert torch.equal(network.nodes[name].v_th, network.nodes[readers[0]].v_th)
        assert ((network.nodes[name].v_th * unit - exact.nodes[name].v_th).abs() <= unit / ONE).all()
    assert max(network.nodes[f"body_{i}_conv2"].weight.abs().max() for i in (0, 1)) <= 127


def test_sums_of_spikes_count_in_what_must_fit():
    """Neurons that do not leak add up 64 steps, so many sources need a coarser unit."""
    width = 2**11
    nodes = {"stem": nn.Conv2d(1, width, 1), **{f"lif{i}": LIF(0.0, torch.ones(width)) for i in range(4)}}
    nodes |= {
        "wide": nn.Conv2d(width, 3, 1, bias=False),
        "neurons": LIF(1.0, torch.ones(3)),
        "readout": nn.Conv2d(3, 2, 1),
    }
    nodes["wide"].weight.data.fill_(1.0)
    inputs = {"stem": [INPUT], "neurons": ["wide"], "readout": ["neurons"]} | {f"lif{i}": ["stem"] for i in range(4)}
    x = torch.randn(1, 1, 1, 1).double()
    for sources in (1, 4):
        found = quantize(small(nodes, inputs | {"wide": [f"lif{i}" for i in range(sources)]}), x, 2)
        largest = found.nodes["wide"].weight.abs().sum() / 3 + found.nodes["wide"].bias.abs().max()
        assert 0.5 * 2**31 < largest * sources * 64 * ONE < 2**31


def test_branches_share_units_and_use_the_whole_range():
    network = quantize(fold(tiny()), images(6, 2, 7, seed=5), 4)
    exact = fold(tiny())
    unit = int8_unit([exact.nodes[name].weight for name in ("body_2_conv2", "body_2_shortcut")])
    for name in ("body_2_conv2", "body_2_shortcut"):
        quantised, weight = network.nodes[name].weight, exact.nodes[name].weight
        assert quantised.abs().max() <= 127
        # rounding makes good for others, within a few steps
        assert (quantised * unit.view(-1, 1, 1, 1) - weight).abs().max() < 8 * unit.max()
    largest = torch.maximum(
        *(network.nodes[name].weight.abs().amax((1, 2, 3)) for name in ("body_2_conv2", "body_2_shortcut"))
    )
    assert (largest >= 120).all()
    threshold = network.nodes["body_2_soma2"].v_th * unit
    assert ((threshold - 0.5).abs() <= unit / ONE).all()


def test_the_first_layer_has_16_bits():
    exact, network = fold(tiny()), quantize(fold(tiny()), images(6, 2, 7, seed=5), 4)
    weight = exact.nodes["stem"].weight * network.input_unit
    unit = int8_unit([weight]).view(-1, 1, 1, 1)
    assert ((network.nodes["stem"].weight * unit - weight).abs() <= unit / ONE / 2 + 1e-12).all()


def scaled_image():
    nodes = {
        "gain": Scale(torch.tensor([0.75, -0.5]), None),
        "neurons": LIF(0.25, torch.full((2,), 0.5)),
        "readout": torch.nn.Conv2d(2, 3, 7),
    }
    return small(nodes, {"gain": [INPUT], "neurons": ["gain"], "readout": ["neurons"]})


def test_a_scale_of_the_image_has_16_bits_too():
    integer = quantize(scaled_image(), images(6, 2, 7), 4)
    weight = torch.tensor([0.75, -0.5]) * integer.input_unit
    unit = int8_unit([weight.diag()])
    assert ((integer.nodes["gain"].weight * unit - weight).abs() <= unit / ONE / 2 + 1e-12).all()


def test_the_mean_current_of_a_layer_stays_what_it_was():
    """Also where another synapse than that with the error must make good for it."""
    torch.manual_seed(0)
    inputs = {"first": [INPUT], "neurons": ["first"], "second": ["neurons"], "third": ["neurons"]}
    nodes = {
        "first": torch.nn.Conv2d(2, 3, 3),
        "neurons": LIF(0.25, torch.full((3,), 0.5)),
        "second": torch.nn.Conv2d(3, 4, 1, bias=False),
        "third": torch.nn.Conv2d(3, 4, 1, bias=False),
        "others": LIF(0.25, torch.full((4,), 0.5)),
    }
    network, x = small(nodes, inputs | {"others": ["second", "third"]}), images(40, 2, 7)
    with torch.no_grad():  # of the first channel, one weight lies halfway between two integers
        network.nodes["second"].weight[0] = torch.tensor([5.0, 0.0, 0.0]).view(3, 1, 1)
        network.nodes["third"].weight[0] = torch.tensor([2.51 / 127 * 5.0, 0.0, 0.0]).view(3, 1, 1)
    integer = quantize(network, x, 3)
    synapses = ("second", "third")
    unit = int8_unit([network.nodes[name].weight for name in synapses])
    spikes = dict(integer.run(x, 3))["neurons"].flatten(0, 1)
    exact, found = (sum(n.nodes[name](spikes) for name in synapses).mean((0, 2, 3)) for n in (network, integer))
    assert (found - exact / unit).abs().max() < 1 / ONE
    assert integer.nodes["second"].bias is not None


def test_most_spikes_agree_with_the_float_network():
    model = tiny()
    x = images(16, 2, 7)
    result = agreement(record(model, x, 4), record(quantize(fold(model), images(64, 2, 7, seed=5), 4), x, 4))
    assert result.layers["soma"] < 0.02
    assert max(result.layers.values()) < 0.2


def test_more_bits_change_fewer_spikes():
    """The more so the deeper: each layer passes on more changes than it received."""
    model, x = tiny(), images(16, 2, 7)
    expected = record(model, x, 4)
    found = {
        bits: agreement(expected, record(quantize(fold(model), images(64, 2, 7, seed=5), 4, bits=bits), x, 4))
        for bits in (8, 16)
    }
    last = list(expected.spikes)[-1]
    assert found[16].layers[last] < 0.25 * found[8].layers[last]
    assert max(found[16].layers.values()) < 0.02


def test_biases_make_good_for_rounded_weights_alone():
    """What other spikes change on some images would be noise to all others: weights of 16 bits lose nearly nothing."""
    exact = fold(tiny())
    found = quantize(exact, images(6, 2, 7, seed=5), 4, bits=16)
    weight, bias = exact.nodes["body_3_conv1"].weight, exact.nodes["body_3_conv1"].bias
    moved = (found.nodes["body_3_conv1"].bias * int8_unit([weight]) - bias).abs()
    assert (moved <= int8_unit([weight]) * (weight[0].numel() / 2 + 1) / ONE).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_weight_of_the_readout_sets_its_unit_whatever_its_sign(sign):
    model = tiny()
    with torch.no_grad():
        model.head.decode.weight[1, 2] = sign * 2 * model.head.decode.weight.abs().max()
    network = quantize(fold(model), images(9, 2, 7), 3)
    *_, readout = network.nodes.values()
    assert network.logit_unit == pytest.approx(model.head.decode.weight.abs().max().item() / 127, rel=1e-6)
    assert readout.weight[1].abs().max() == 127


def test_event_counts_need_no_rounding():
    events = torch.randint(0, 4, (3, 6, 2, 7, 7)).double()
    network = quantize(fold(tiny()), events)
    assert network.input_unit == 1.0
    for pixels in (events * 0.1, events * -0.1):
        assert quantize(fold(tiny()), pixels).input_unit == pytest.approx(0.3 / 4095)


@pytest.mark.parametrize("global_pool", [False, True])
def test_the_exported_file_holds_int8_and_runs_exactly(tmp_path, global_pool):
    pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
    network = quantize(fold(tiny(global_pool=global_pool, decay=0.3)), images(6, 2, 7, seed=5), 4)
    rheobase_nir.write(network, tmp_path / "net.nir", (2, 7, 7))
    graph = nirfile.read(tmp_path / "net.nir")
    weights = {name: node.values["weight"].dtype for name, node in graph.nodes.items() if node.kind == "Conv2d"}
    wide = {name for name, node in fold(tiny(global_pool=global_pool)).nodes.items() if isinstance(node, Scale)}
    assert {name for name, dtype in weights.items() if dtype != np.int8} == wide | {"stem"}
    x = images(3, 2, 7)
    expected = record(network, x, 4)
    loaded = agreement(expected, record(rheobase_nir.load(tmp_path / "net.nir"), x, 4))
    assert set(loaded.layers.values()) == {0.0}
    assert loaded.logits == 0
    for i in range(3):
        result = simulate(graph, x[i].numpy(), 4)
        for name, spikes in result.spikes.items():
            np.testing.assert_array_equal(spikes.reshape(4, -1), expected.spikes[name][:, i].numpy())
        np.testing.assert_allclose(result.logits, expected.logits[:, i].numpy(), rtol=1e-12)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("made", [lambda: fold(tiny()), scaled_image], ids=["shortcut", "scaled image"])
def test_every_format_costs_the_same_energy(tmp_path, bits, made):
    network = quantize(made(), images(6, 2, 7, seed=5), 4, bits=bits)
    native.write(network, tmp_path / "net.safetensors", (2, 7, 7))
    rheobase_nir.write(network, tmp_path / "net.nir", (2, 7, 7))
    found = [native.load(tmp_path / "net.safetensors"), rheobase_nir.load(tmp_path / "net.nir"), network]
    assert all(any(isinstance(node, Scale) for node in each.nodes.values()) for each in found)
    costs = [fan_out(each.to("meta"), (2, 7, 7)) for each in found]
    assert costs[0] == costs[1] == costs[2]
    floating = fan_out(made().to("meta"), (2, 7, 7))
    first = next(iter(floating.additions))
    assert costs[0].additions[first] == floating.additions[first]  # a shortcut is a scale in all of them
    assert costs[0].encoding == floating.encoding


def test_it_tells_how_far_it_is():
    told = []
    network = quantize(fold(tiny()), images(6, 2, 7), 4, lambda done, layers: told.append((done, layers)))
    neurons = sum(isinstance(node, LIF) for node in network.nodes.values())
    assert told == [(i, neurons + 1) for i in range(neurons + 1)]


def test_the_float_network_is_left_alone():
    network = fold(tiny())
    before = {name: t.clone() for name, t in network.state_dict().items()}
    quantize(network, images(6, 2, 7), 4)
    assert all(torch.equal(before[name], t) for name, t in network.state_dict().items())


def test_what_cannot_be_quantised_is_explained():
    network = fold(tiny())
    with pytest.raises(ValueError, match="expected images"):
        quantize(network, torch.zeros(2, 7, 7), 4)
    with pytest.raises(ValueError, match="images need timesteps"):
        quantize(network, images(6, 2, 7))
    with pytest.raises(ValueError, match="expected weights of 8 or 16 bits, got 12"):
        quantize(network, images(6, 2, 7), 4, bits=12)
    quantised = quantize(network, images(6, 2, 7), 4)
    with pytest.raises(ValueError, match="quantised already"):
        quantize(quantised, images(6, 2, 7), 4)
    with pytest.raises(ValueError, match="canonical form"):
        rheobase_nir.to_nir(quantised, (2, 7, 7), "portable")


def test_sums_that_may_not_fit_are_named():
    wide = torch.nn.Linear(2**18, 3).double()
    nodes = {"flatten": torch.nn.Flatten(), "wide": wide, "neurons": LIF(0.25, torch.ones(3).double())}
    readout = torch.nn.Linear(3, 2).double()
    inputs = {"flatten": [INPUT], "wide": ["flatten"], "neurons": ["wide"], "readout": ["neurons"]}
    with pytest.raises(ValueError, match="'neurons' may not fit"):
        quantize(Network(nodes | {"readout": readout}, inputs), torch.randn(1, 4, 256, 256).double(), 2)


def small(nodes: dict, inputs: dict) -> Network:
    return Network({name: node.double() for name, node in nodes.items()}, inputs)


def test_a_channel_with_hardly_any_weights_is_quantised():
    torch.manual_seed(0)
    first, readout = torch.nn.Conv2d(2, 3, 3), torch.nn.Conv2d(3, 5, 5)
    with torch.no_grad():
        first.weight[1] *= 1e-9
        first.bias[1] = -0.3
    inputs = {"first": [INPUT], "neurons": ["first"], "readout": ["neurons"]}
    network = small({"first": first, "neurons": LIF(0.25, torch.full((3,), 0.5)), "readout": readout}, inputs)
    x = images(6, 2, 7)
    expected, found = (record(n, x, 2).spikes["neurons"] for n in (network, quantize(network, x, 2)))
    assert expected.any()
    assert not expected[:, :, 25:50].any()  # 25 neurons each; the second channel is silent
    assert (expected != found).double().mean() < 0.02


def test_wiring_that_has_no_integers_is_named():
    def conv(channels: int, out: int) -> torch.nn.Conv2d:
        return torch.nn.Conv2d(channels, out, 1)

    neurons = {name: LIF(0.25, torch.ones(3)) for name in ("a", "b")}
    mixed = {"conv": conv(2, 2), "a": LIF(0.25, torch.ones(2)), "two": conv(2, 3), "b": neurons["b"]}
    inputs = {"conv": [INPUT], "a": ["conv"], "two": [INPUT, "a"], "b": ["two"], "readout": ["b"]}
    with pytest.raises(ValueError, match="'two' reads the image and spikes"):
        quantize(small(mixed | {"readout": conv(3, 5)}, inputs), images(6, 2, 7), 4)
    chain = {"one": conv(2, 4), "two": conv(4, 3), "a": neurons["a"], "readout": conv(3, 5)}
    inputs = {"one": [INPUT], "two": ["one"], "a": ["two"], "readout": ["a"]}
    with pytest.raises(ValueError, match="'two' cannot follow 'one'"):
        quantize(small(chain, inputs), images(6, 2, 7), 4)


def test_neurons_that_leak_a_little_still_leak():
    inputs = {"stem": [INPUT], "fast": ["stem"], "conv": ["fast"], "slow": ["conv"], "readout": ["slow"]}
    for decay, expected in ((0.9985, 255 / 256), (1.0, 1.0)):
        nodes = {
            "stem": torch.nn.Conv2d(2, 4, 1),
            "fast": LIF(0.25, torch.ones(4)),
            "conv": torch.nn.Conv2d(4, 3, 1),
            "slow": LIF(decay, torch.ones(3)),
            "readout": torch.nn.Conv2d(3, 5, 1),
        }
        assert quantize(small(nodes, inputs), images(6, 2, 7), 4).nodes["slow"].decay == expected


def test_a_network_that_ends_in_neurons_keeps_its_spikes():
    model = nn.Sequential(Conv2d(2, 3, 3, padding=1), Soma(3), Conv2d(3, 5, 3, padding=1), Soma(5)).double().eval()
    with torch.no_grad():
        model[3].weight.copy_(torch.tensor([[0.3, 1.0, 3.0, 10.0, 30.0]]))  # very different units
        model[3].bias[0, 0] = 0.4
    x = images(3, 2, 7).expand(4, -1, -1, -1, -1)
    exact = fold(model)
    found = quantize(exact, x)(x)
    assert found.unique().tolist() == [0.0, 1.0]
    assert (found != exact(x)).double().mean() < 0.02


def test_images_of_any_type_are_taken():
    network, x = quantize(fold(tiny()), images(3, 2, 7), 3), images(3, 2, 7).float()
    assert torch.equal(network(x, 3), network(x.double(), 3))
