import pytest
import torch
from torch import Tensor, nn

from rheobase.analysis.variants import NeuNorm, NoNorm, StepNorm, UnitAlpha, UnscaledNorm
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir
from rheobase.deploy.network import LIF, Network, Scale
from rheobase.models import MODELS, BasicBlock, build
from rheobase.nn import AvgPool2d, Conv2d, ReluSoma, Soma
from tests.deploy.networks import SMALL, images, randomise, tiny, trained_like


def assert_identical(model: nn.Module, network: Network, x: Tensor, timesteps: int | None) -> None:
    expected = record(model, x, timesteps)
    result = agreement(expected, record(network, x, timesteps))
    assert set(result.layers.values()) == {0.0}
    assert result.logits < 1e-9
    for name, spikes in expected.spikes.items():  # alive: they depend on the input, down to the last layer
        assert (spikes != spikes[:, :1]).double().mean() > 0.01, name


def test_every_network_is_covered():
    assert {name for name, *_ in SMALL} == set(MODELS)


@pytest.mark.parametrize(("name", "options", "size", "timesteps"), SMALL, ids=[name for name, *_ in SMALL])
def test_folded_spikes_are_identical_in_float64(name, options, size, timesteps):
    model = trained_like(name, size, **options)
    network = fold(model)
    assert not [m for m in network.modules() if isinstance(m, (Soma, nn.modules.batchnorm._BatchNorm))]
    assert_identical(model, network, images(2, options["in_channels"], size), timesteps)


@pytest.mark.parametrize("choices", [{"learn_decay": "layer"}, {"surrogate": "atan", "reset_gradient": False}], ids=str)
def test_neurons_that_fire_like_the_papers_fold(choices):
    model = trained_like("resnet8", 8, in_channels=1, decay=0.4, **choices)
    if "learn_decay" in choices:
        for i, soma in enumerate(m for m in model.modules() if isinstance(m, Soma)):
            soma.decay_logit.fill_(i / 4 - 1)
    network = fold(model)
    assert all(type(node.decay) is float for node in network.nodes.values() if isinstance(node, LIF))
    assert_identical(model, network, images(2, 1, 8), 5)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"reset": "soft"},
            "fold: the neurons of soma have a soft reset, which a deployed network does not know; train with "
            "reset=hard",
        ),
        (
            {"learn_decay": "channel"},
            "fold: the neurons of soma have a decay for every channel, and a deployed layer has one; train with "
            "learn_decay=layer",
        ),
    ],
)
def test_neurons_that_a_deployed_network_does_not_know(choices, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        fold(build("resnet8", **choices))


def test_a_relu_network_is_refused():
    with pytest.raises(ValueError, match=r"^fold: the neurons of soma \(ReluSoma\) have dynamics of their own"):
        fold(build("resnet8", soma=ReluSoma))


def test_sequence_and_static_input():
    model = tiny()
    network = fold(model)
    sequence = torch.stack([images(3, 2, 7, seed) for seed in range(4)])
    assert_identical(model, network, sequence, None)
    still = images(3, 2, 7)
    torch.testing.assert_close(network(still, 4), network(still.expand(4, -1, -1, -1, -1)), rtol=0, atol=0)


def test_equation_9_and_10_by_hand():
    model = tiny()
    soma = model.soma
    soma.weight.fill_(-3.0)
    soma.bias.fill_(0.125)
    soma.running_mean.fill_(2.0)
    soma.running_var.fill_(4.0 - soma.eps)
    stem = fold(model).nodes["stem"]
    # lambda * alpha * v_th / sqrt(var + eps) = -3 * 1 * 0.5 / 2
    torch.testing.assert_close(stem.weight, -0.75 * model.stem.weight)
    torch.testing.assert_close(stem.bias, torch.full((4,), -0.75 * (0 - 2) + 0.125, dtype=torch.float64))


def test_identity_shortcut_is_a_scale_with_half_the_variance():
    model = tiny()
    soma = model.body[0].soma2
    for p, value in ((soma.weight, 1.0), (soma.bias, 0.25), (soma.running_mean, 0.0)):
        p.fill_(value)
    soma.running_var.fill_(1.0 - soma.eps)
    network = fold(model)
    shortcut, conv = network.nodes["body_0_shortcut"], network.nodes["body_0_conv2"]
    assert isinstance(shortcut, Scale)
    torch.testing.assert_close(shortcut.weight, torch.full((4,), 0.5 / 2**0.5, dtype=torch.float64))
    assert shortcut.bias is None  # both biases sit on the first branch
    torch.testing.assert_close(conv.bias, torch.full((4,), 0.5, dtype=torch.float64))
    assert network.inputs["body_0_soma2"] == ("body_0_conv2", "body_0_shortcut")


def test_convolutions_with_bias_and_three_branches():
    class ThreeWays(nn.Module):
        """A pooled, an identity and a convolved branch, which no network of the package has."""

        def __init__(self):
            super().__init__()
            self.conv = Conv2d(4, 4, 3, padding=1, bias=True)
            self.pool = AvgPool2d(3, 1, 1)
            self.soma = Soma(4, branches=3)

        def forward(self, s):
            return self.soma(s, self.conv(s), self.pool(s))

    model = tiny()
    model.body.insert(0, ThreeWays())
    model.body.append(BasicBlock(12, 12, 1, Soma))
    randomise(model, 7)
    assert_identical(model, fold(model), images(3, 2, 7), 4)


def test_a_network_of_ones_own():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(Conv2d(2, 4, 3, padding=1, bias=False), Soma(4))
            self.pool = AvgPool2d(2)
            self.hidden, self.soma = nn.Linear(4 * 3 * 3, 6), Soma(6)
            self.decode = nn.Linear(6, 5)

        def forward(self, x):
            return self.decode(self.soma(self.hidden(self.pool(self.first(x)).flatten(2))))

    model = Chain().double().eval().requires_grad_(False)
    network = fold(model)
    sequence = torch.stack([images(3, 2, 7, seed) for seed in range(4)])
    result = agreement(record(model, sequence), record(network, sequence))
    assert list(network.nodes) == ["first_0", "first_1", "pool", "flatten", "hidden", "soma", "decode"]
    assert set(result.layers.values()) == {0.0}
    assert result.logits < 1e-9


def test_a_layer_that_cannot_be_mapped_is_named():
    model = tiny()
    model.body[2].soma1 = nn.ReLU()
    with pytest.raises(ValueError, match=r"body\.2\.soma1 \(ReLU\)"):
        fold(model)
    for variant in (NoNorm, NeuNorm, StepNorm, UnitAlpha, UnscaledNorm):
        with pytest.raises(ValueError, match=rf"soma \({variant.__name__}\) have dynamics of their own"):
            fold(build("resnet8", soma=variant))
    model = tiny()
    model.head.pool = AvgPool2d(3, 2, 1, count_include_pad=False)
    with pytest.raises(ValueError, match=r"head\.pool \(AvgPool2d\)"):
        fold(model)
    model = tiny()
    model.body[1].conv = Conv2d(4, 6, 3, 2, padding=1, padding_mode="reflect")
    with pytest.raises(ValueError, match=r"padding of body\.1\.conv"):
        fold(model)
    model = tiny()
    model.body[1].conv = nn.MaxPool2d(2)
    with pytest.raises(ValueError, match=r"body\.1\.conv \(MaxPool2d\)"):
        fold(model)


def test_an_operation_that_cannot_be_mapped_is_named():
    class Doubled(nn.Module):
        def forward(self, s):
            return s + s

    class Conditional(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential()

        def forward(self, s):
            return s if s.sum() > 0 else -s

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(Conv2d(4, 4, 1), Soma(4))

        def forward(self, s):
            return self.inner(s) * 2

    for block, words in [(Doubled(), "'add' in body.0"), (Conditional(), "body.0"), (Wrapper(), "'mul' in body.0")]:
        model = tiny()
        model.body.insert(0, block)
        with pytest.raises(ValueError, match=words):
            fold(model)


def test_streaming_equals_the_whole_sequence():
    network = fold(tiny())
    sequence = torch.stack([images(3, 2, 7, seed) for seed in range(5)])
    state, logits = None, []
    for x in sequence:
        before = None if state is None else {name: v.clone() for name, v in state.items()}
        previous = state
        logit, state = network.step(x, state)
        logits.append(logit)
        if before is not None:  # the state given is not changed
            assert all(torch.equal(before[name], previous[name]) for name in before)
    assert set(state) == {name for name, node in network.nodes.items() if isinstance(node, LIF)}
    torch.testing.assert_close(torch.stack(logits), network(sequence), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_reported(dtype):
    model = tiny()
    x = images(3, 2, 7)
    result = agreement(record(model, x, 4), record(fold(model).to(dtype), x.to(dtype), 4))
    assert list(result.layers) == [
        "soma", "body_0_soma1", "body_0_soma2", "body_1_soma", "body_2_soma1", "body_2_soma2",
        "body_3_soma1", "body_3_soma2", "body_3_soma3", "head_soma",
    ]  # fmt: skip
    assert result.layers["soma"] < 0.05
    assert 0 < result.logits < 10


def test_folding_leaves_the_model_alone():
    model = tiny()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    network = fold(model)
    for node in network.parameters():
        node.zero_()
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_wrong_input_is_explained():
    network = fold(tiny())
    with pytest.raises(ValueError, match="timesteps of at least 1"):
        network(images(3, 2, 7))
    with pytest.raises(ValueError, match="does not match the sequence"):
        network(images(3, 2, 7).expand(4, -1, -1, -1, -1), 5)
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]"):
        network(images(3, 2, 7)[0], 4)


class Named(nn.Module):
    """Reads its input twice; its layers have the given names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        layers = Conv2d(2, 2, 3, padding=1, bias=False), Soma(2), Soma(2, 2), Conv2d(2, 5, 1, bias=False)
        for name, layer in zip(names, layers, strict=True):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        conv, soma1, soma2, last = (getattr(self, name) for name in self.names)
        return last(x=soma2(soma1(conv(x)), x))


@pytest.mark.parametrize(
    "names",
    [("input", "a", "b", "output"), ("output", "a", "b", "input"), ("a", "input", "output", "b")],
)
def test_layers_may_be_called_input_and_output(names):
    pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
    x = images(3, 2, 7).expand(4, -1, -1, -1, -1)
    model = Named(*names).double().eval()
    network = fold(model)
    torch.testing.assert_close(network(x), model(x).flatten(2), rtol=0, atol=1e-12)
    expected, found = record(model, x).spikes, record(network, x).spikes
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert {"input", "output"} < set(nir.to_nir(network, (2, 7, 7)).nodes)


def test_a_node_cannot_be_called_input():
    with pytest.raises(ValueError, match="node 'input': the name is that of the network's own input"):
        Network({"input": nn.Flatten()}, {"input": ["input"]})


def test_a_node_called_output_cannot_be_written_as_nir():
    pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
    network = Network({"output": nn.Conv2d(2, 5, 3)}, {"output": ["input"]})
    with pytest.raises(ValueError, match="cannot express 'output' in NIR"):
        nir.to_nir(network, (2, 7, 7))
