import pytest
import torch
from torch import Tensor, nn

from rheobase.analysis.variants import NeuNorm, NoNorm, StepNorm, UnitAlpha, UnscaledNorm
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir
from rheobase.deploy.network import Network, node_name
from rheobase.deploy.nodes import LIF
from rheobase.models import MODELS, BasicBlock, build
from rheobase.nn import AvgPool2d, Conv2d, ReferenceSoma, ReluSoma, Soma, TdBN, somas
from tests.deploy.networks import SMALL, images, randomise, tiny, trained_like


def assert_identical(model: nn.Module, network: Network, x: Tensor, timesteps: int | None) -> None:
    expected = record(model, x, timesteps)
    result = agreement(expected, record(network, x, timesteps))
    assert set(result.layers.values()) == {0.0}
    assert result.logits < 1e-9
    for name, spikes in expected.spikes.items():  # alive: they depend on the input, down to the last layer
        assert (spikes != spikes[:, :1]).double().mean() > 0.01, name


RELATIVES = [
    "cifarnet", "ms_resnet18", "ms_resnet19", "ms_resnet34", "sew_resnet18", "sew_resnet19", "sew_resnet34",
    "sew_resnet50", "vgg11", "vgg16",
]  # fmt: skip


def test_every_network_is_covered():
    assert {name for name, *_ in SMALL} | set(RELATIVES) == set(MODELS)


@pytest.mark.parametrize("name", RELATIVES)
def test_the_wiring_of_large_networks(name):
    """Without memory; `test_every_network` runs small ones of their blocks."""
    with torch.device("meta"):
        model = build(name)
    network = fold(model)
    layers = {name for name, node in network.nodes.items() if isinstance(node, LIF)}
    assert layers == {node_name(path) for path in somas(model)}
    synapses = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert sum(isinstance(node, nn.Conv2d | nn.Linear) for node in network.nodes.values()) == len(synapses)
    assert list(network.nodes)[-1] == "head_decode"


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
    assert_identical(model, fold(model), images(2, 1, 8), 5)


def test_a_relu_network_is_refused():
    with pytest.raises(ValueError, match=r"^fold: the neurons of soma \(ReluSoma\) do not spike; .* `rheobase convert"):
        fold(build("resnet8", soma=ReluSoma))


def test_sequence_and_static_input():
    model = tiny()
    network = fold(model)
    sequence = torch.stack([images(3, 2, 7, seed) for seed in range(4)])
    assert_identical(model, network, sequence, None)
    still = images(3, 2, 7)
    torch.testing.assert_close(network(still, 4), network(still.expand(4, -1, -1, -1, -1)), rtol=0, atol=0)


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
        with pytest.raises(
            ValueError, match=rf"soma \({variant.__name__}\) have dynamics or a normalisation of their own"
        ):
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

    for block, words in [
        (Doubled(), "'add' in body.0 .* adds the same value twice"),
        (Conditional(), "body.0"),
        (Wrapper(), "'mul' in body.0"),
    ]:
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
    with pytest.raises(ValueError, match="node 'input': this is the name of the network's input"):
        Network({"input": nn.Flatten()}, {"input": ["input"]})


def test_a_node_called_output_cannot_be_written_as_nir():
    pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
    network = Network({"output": nn.Conv2d(2, 5, 3)}, {"output": ["input"]})
    with pytest.raises(ValueError, match="cannot express 'output' in NIR"):
        nir.to_nir(network, (2, 7, 7))


class Sums(nn.Module):
    """tdBN of a sum of currents, a soma behind a sum of spikes, a pool, a shortcut and a flattened sum."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = Conv2d(2, 3, 3), Conv2d(2, 3, 3, bias=False), TdBN(3)
        self.bare, self.soma, self.shortcut = Soma(3, normalize=False), Soma(3), nn.Identity()
        self.both, self.pool, self.decode = Soma(3, branches=2), AvgPool2d(2), nn.Linear(3 * 9, 5)

    def forward(self, x):
        current = self.norm(self.one(x) + self.two(x))
        a = self.bare(current)
        b = self.soma(current)
        spikes = torch.add(a, b)
        c = self.both(self.shortcut(spikes), spikes.add(self.soma(a)))
        return self.decode((self.pool(c) + self.pool(spikes)).flatten(2))


def test_sums_wherever_they_are():
    torch.manual_seed(0)
    model = Sums().double().eval()
    for norm in (model.norm, model.soma, model.both):
        for p in (norm.weight, norm.running_var):
            nn.init.uniform_(p, 0.7, 1.6)
        for p in (norm.bias, norm.running_mean):
            nn.init.normal_(p, 0, 0.2)
    network, x = fold(model), torch.randn(4, 3, 2, 8, 8, dtype=torch.float64)
    assert_identical(model, network, x, None)
    assert network.inputs["bare"] == ("one", "two")
    assert network.inputs["soma"] == ("one_", "two_")  # tdBN twice: weights of its own
    assert network.inputs["shortcut"] == ("bare", "soma")  # a scale of the sum
    assert network.inputs["both_scale"] == ("bare", "soma", "soma_")
    assert network.inputs["decode"] == ("flatten", "flatten_")


def test_a_network_that_yields_a_sum_is_refused():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.soma, self.a, self.b = Conv2d(2, 3, 3), Soma(3), nn.Linear(3, 5), nn.Linear(3, 5)

        def forward(self, x):
            s = self.soma(self.stem(x)).mean((-2, -1))
            return self.a(s) + self.b(s)

    with pytest.raises(ValueError, match=r"^fold: expected one layer that computes the logits, got a, b$"):
        fold(TwoHeads())


def test_normalisations_of_their_own_kind_are_refused():
    class Half(TdBN):
        def current(self, *xs):
            return super().current(*xs) / 2

    with pytest.raises(ValueError, match=r"^fold: 1 \(Half\) overrides the computation of its base class"):
        fold(nn.Sequential(Conv2d(2, 3, 3), Half(3), Soma(3, normalize=False)))
    with pytest.raises(ValueError, match=r"^fold: 1 expects 2 branches, got 1$"):
        fold(nn.Sequential(Conv2d(2, 3, 3), TdBN(3, branches=2), Soma(3, normalize=False)))


def test_what_is_added_besides_values_is_named():
    class Shifted(nn.Module):
        def forward(self, s):
            return s + 1.0

    with pytest.raises(ValueError, match=r"^fold: cannot map the operation 'add' in 1"):
        fold(nn.Sequential(Conv2d(2, 3, 3), Shifted(), Soma(3)))


@pytest.mark.parametrize(
    ("kind", "arguments"), [("flatten", (2, 3)), ("flatten", (1,)), ("mean", (-1,)), ("mean", (2,))]
)
def test_other_axes_than_channels_height_and_width_together_are_refused(kind, arguments):
    class Odd(nn.Module):
        def forward(self, s):
            return getattr(s, kind)(*arguments)

    with pytest.raises(ValueError, match=rf"^fold: cannot map the operation '{kind}' in 1"):
        fold(nn.Sequential(Conv2d(2, 3, 3), Odd(), Soma(3)))


def test_a_soma_with_a_threshold_for_every_channel_is_refused():
    soma = ReferenceSoma(3)
    soma.v_th = torch.tensor([0.4, 0.5, 0.6])
    with pytest.raises(
        ValueError, match=r"^fold: the neurons of 1 \(ReferenceSoma\) have dynamics or a normalisation of their own"
    ):
        fold(nn.Sequential(Conv2d(2, 3, 3), soma))


class InPlace(nn.Module):
    """A SEW block as others write it; `seen` changes with the sum where something else reads it."""

    def __init__(self, seen):
        super().__init__()
        self.conv, self.soma, self.shortcut, self.seen = Conv2d(4, 4, 3, padding=1), Soma(4), nn.Identity(), seen

    def forward(self, s):
        out = self.soma(self.conv(s))
        kept = {"nowhere": s, "out": out, "shortcut": s}[self.seen]
        if self.seen == "shortcut":
            out, s = self.shortcut(s), out
        out += s
        return out if kept is s else out + kept


def test_sums_in_place_are_sums_unless_somebody_sees_the_change():
    model = tiny()
    model.body.insert(0, InPlace("nowhere"))
    randomise(model, 7)
    assert_identical(model, fold(model), images(3, 2, 7), 4)
    for seen in ("out", "shortcut"):
        model = tiny()
        model.body.insert(0, InPlace(seen))
        with pytest.raises(ValueError, match=r"^fold: cannot map the operation 'iadd' in body.0"):
            fold(model)
