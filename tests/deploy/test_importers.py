"""Networks of other code bases, loaded into ours: identical outputs in float64."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rheobase.deploy.importers import branch_names, import_state, read_state
from rheobase.functional import lif
from rheobase.models import build
from rheobase.models.blocks import MSBlock
from rheobase.nn import TdBN
from tests.deploy.networks import images, styled

T = 4
NEURON = {"decay": 0.25, "v_th": 0.4}
# our layers -> theirs, for the residual network below
NAMES = {
    "stem": "conv", "soma.0": "bn",
    **{f"body.{i}.{ours}": f"blocks.{i}.{theirs}"
       for i in range(3)
       for ours, theirs in [("conv1", "conv1"), ("soma1.0", "bn1"), ("conv2", "conv2"), ("soma2.0", "bn2")]},
    "body.0.soma2.1": "blocks.0.bn3",
    **{f"body.{i}.shortcut": f"blocks.{i}.conv3" for i in (1, 2)},
    **{f"body.{i}.soma2.1": f"blocks.{i}.bn3" for i in (1, 2)},
    "head.decode": "fc",
}  # fmt: skip


class Block(nn.Module):
    """A residual block as others write it: normalisations of one scale each, the neuron apart."""

    def __init__(self, channels_in, channels, stride, norm, neuron, bias):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=bias)
        self.bn1, self.lif1 = norm(1.0, channels), neuron()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=bias)
        self.bn2 = norm(2**-0.5, channels)
        changes = stride > 1 or channels_in != channels
        self.conv3 = nn.Conv2d(channels_in, channels, 1, stride, bias=bias) if changes else nn.Identity()
        self.bn3, self.lif2 = norm(2**-0.5, channels), neuron()

    def forward(self, s):
        h = self.lif1(self.bn1(steps(self.conv1, s)))
        return self.lif2(self.bn2(steps(self.conv2, h)) + self.bn3(steps(self.conv3, s)))


class Other(nn.Module):
    def __init__(self, norm, neuron, bias=False):
        super().__init__()
        self.conv = nn.Conv2d(2, 16, 3, 1, 1, bias=bias)
        self.bn, self.lif = norm(1.0, 16), neuron()
        sizes = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.blocks = nn.Sequential(*(Block(a, b, s, norm, neuron, bias) for a, b, s in sizes))
        self.fc = nn.Linear(64, 7)

    def forward(self, x):
        return self.fc(self.blocks(self.lif(self.bn(steps(self.conv, x)))).mean((-2, -1)))


class ExplicitNorm(nn.BatchNorm2d):
    """tdBN with explicit factors, as in STBP-simple."""

    def __init__(self, alpha, channels):
        super().__init__(channels)
        self.alpha = alpha

    def forward(self, x):
        mean, var, weight, bias = (
            p.view(-1, 1, 1) for p in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        normalised = self.alpha * NEURON["v_th"] * (x - mean) / torch.sqrt(var + self.eps)
        return weight * normalised + bias


class Neuron(nn.Module):
    def forward(self, x):
        return lif(x, width=1.0, **NEURON)


class NoNorm(nn.Module):
    def forward(self, x):
        return x


def steps(layer, x):
    return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def randomised(network):
    for name, p in network.double().state_dict().items():
        if "bn" in name and p.is_floating_point():
            # near the statistics of such currents, so that spikes get through
            low, high = {"weight": (0.3, 0.9), "running_var": (0.1, 0.6)}.get(name.split(".")[-1], (-0.2, 0.3))
            p.uniform_(low, high)
    return network.eval().requires_grad_(False)


def ours(state, names=NAMES, **options):
    model = build("resnet8", num_classes=7, in_channels=2, **NEURON).double().eval()
    import_state(model, state, names, **options)
    return model


def sequence():
    return torch.stack([images(3, 2, 9, seed) for seed in range(T)])


def assert_equal(theirs, model):
    expected = theirs(sequence())
    assert expected.std(1).min() > 1e-3  # the input gets through
    torch.testing.assert_close(model(sequence()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_spikingjelly(bias):
    layers = pytest.importorskip("spikingjelly.activation_based.layer", reason="spikingjelly is not installed")
    from spikingjelly.activation_based import neuron, surrogate

    def norm(alpha, channels):
        layer = layers.ThresholdDependentBatchNorm2d(alpha, NEURON["v_th"], channels)
        layer.step_mode = "m"
        return layer

    def lif_node():
        options = {"decay_input": False, "v_threshold": NEURON["v_th"], "v_reset": 0.0, "step_mode": "m"}
        return neuron.LIFNode(tau=1 / (1 - NEURON["decay"]), surrogate_function=surrogate.Rect(), **options)

    theirs = randomised(Other(norm, lif_node, bias))
    assert_equal(theirs, ours(theirs.state_dict(), style="gamma"))


def test_explicit_factors():
    theirs = randomised(Other(ExplicitNorm, Neuron))
    assert_equal(theirs, ours(theirs.state_dict(), style="explicit"))


def test_explicit_factors_that_differ_from_ours():
    theirs = randomised(Other(lambda _, channels: ExplicitNorm(1.0, channels), Neuron))  # they forgot 1/sqrt(2)
    factors = {f"body.{i}.soma2.{branch}": NEURON["v_th"] for i in range(3) for branch in range(2)}
    assert_equal(theirs, ours(theirs.state_dict(), style="explicit", factors=factors))


def test_gamma_style_with_another_eps():
    theirs = randomised(Other(lambda _, channels: nn.BatchNorm3d(channels, eps=1e-3), Neuron))
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm3d):  # [T, N, C, H, W] -> [N, C, T, H, W] and back
            module.register_forward_pre_hook(lambda _, args: (args[0].permute(1, 2, 0, 3, 4),))
            module.register_forward_hook(lambda _, __, y: y.permute(2, 0, 1, 3, 4))
    assert_equal(theirs, ours(theirs.state_dict(), style="gamma", eps=1e-3))


@pytest.mark.parametrize("style", ["gamma", "explicit"])
def test_a_shortcut_without_normalisation(style):
    theirs = Other(ExplicitNorm, Neuron)
    if style == "gamma":
        theirs = Other(lambda alpha, channels: GammaNorm(channels), Neuron)
    theirs.blocks[0].bn3 = NoNorm()
    theirs = randomised(theirs)
    assert_equal(theirs, ours(theirs.state_dict(), NAMES | {"body.0.soma2.1": None}, style=style))


class GammaNorm(ExplicitNorm):
    def __init__(self, channels):
        super().__init__(1 / NEURON["v_th"], channels)


def test_names_must_be_complete_and_right():
    state = randomised(Other(ExplicitNorm, Neuron)).state_dict()
    assert set(branch_names(build("resnet8"))) == set(NAMES)
    with pytest.raises(ValueError, match=r"check stem"):
        ours(state, {k: v for k, v in NAMES.items() if k != "stem"}, style="explicit")
    with pytest.raises(ValueError, match=r"no 'nothing.weight'"):
        ours(state, NAMES | {"stem": "nothing"}, style="explicit")
    with pytest.raises(ValueError, match=r"'blocks.1.conv1.weight' has the shape"):
        ours(state, NAMES | {"stem": "blocks.1.conv1"}, style="explicit")
    with pytest.raises(ValueError, match=r"does not mention: blocks.0.bn3"):
        ours(state, NAMES | {"body.0.soma2.1": None}, style="explicit")
    with pytest.raises(ValueError, match="unknown style"):
        ours(state, style="other")


def test_checkpoints_are_read_without_running_code(tmp_path):
    state = {"module.conv.weight": torch.zeros(2, 3)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "a.pt")
    save_file(state, tmp_path / "b.safetensors")
    assert list(read_state(tmp_path / "a.pt")) == ["conv.weight"]
    assert list(read_state(tmp_path / "b.safetensors")) == ["module.conv.weight"]

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    (tmp_path / "c.pt").write_bytes(pickle.dumps(Hostile()))
    torch.save({"x": Hostile()}, tmp_path / "d.pt")
    (tmp_path / "e.pt").write_bytes(b"hello")
    torch.save([1, 2], tmp_path / "f.pt")
    for name in ("c.pt", "d.pt", "e.pt", "f.pt", "missing.pt"):
        with pytest.raises(ValueError, match=name):
            read_state(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def test_a_bias_that_they_do_not_have_is_none():
    theirs = randomised(Other(ExplicitNorm, Neuron))
    state, bias = theirs.state_dict(), f"{NAMES['head.decode']}.bias"
    zero = torch.zeros_like(state.pop(bias))
    expected, found = (ours(s, style="explicit")(sequence()) for s in (state | {bias: zero}, state))
    assert torch.equal(expected, found)


def test_normalisations_without_neurons_are_loaded_too():
    theirs, ours = styled(MSBlock), styled(MSBlock, seed=1)
    layers = dict(theirs.named_modules())
    names = {name: name if name in layers else name.removesuffix(".0") for name in branch_names(ours)}
    assert "norm.0" in names
    assert not any("neurons" in name or name == "soma.0" for name in names)  # currents as they are
    state = {}
    for path, module in theirs.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            state |= {f"{path}.{key}": value for key, value in module.state_dict().items()}
        elif isinstance(module, TdBN) and f"{path}.0" in names:
            state[f"{path}.weight"] = module.weight[0] * module.v_th
            for key in ("bias", "running_mean", "running_var"):
                state[f"{path}.{key}"] = getattr(module, key)[0]
    x = images(2, 2, 8)
    assert not torch.equal(ours(x, 3), theirs(x, 3))
    import_state(ours, state, names, style="gamma")
    torch.testing.assert_close(ours(x, 3), theirs(x, 3), rtol=0, atol=1e-9)


@pytest.mark.parametrize("content", [b"", b"\0\0", b"PK"])
def test_an_empty_checkpoint_is_one_sentence(tmp_path, content):
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.pt: not a checkpoint of tensors, or damaged: .") as found:
        read_state(tmp_path / "state.pt")
    assert "\n" not in str(found.value)
