"""The networks of Table 4 and Fig. 2: layout, size, cost, and that each one fires and trains from the start."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rheobase.functional import lif, readout
from rheobase.models import MODELS, SpikingNet, build
from rheobase.nn import Soma, normalisations

every_network = pytest.mark.parametrize("name", MODELS)
NATIVE_SIZE = {"plain5": 34, "resnet8": 8}
NATIVE_SIZE |= dict.fromkeys(
    ("plain20", "resnet17", "resnet19", "sew_resnet19", "ms_resnet19", "vgg11", "vgg16", "cifarnet"), 32
)  # 224 for the others
SMALL: dict[str, dict[str, int]] = {  # as far as the strides allow
    "plain5": {"image_size": 8},
    "plain20": {"image_size": 8, "channels": 16},
    "resnet8": {"image_size": 8},
    "resnet17": {"image_size": 8},
    "resnet19": {"image_size": 8},
    "resnet34": {"image_size": 32},
    "resnet34_large": {"image_size": 32},
    "resnet50": {"image_size": 32},
    "sew_resnet18": {"image_size": 32},
    "sew_resnet34": {"image_size": 32},
    "sew_resnet50": {"image_size": 32},
    "sew_resnet19": {"image_size": 8},
    "ms_resnet18": {"image_size": 32},
    "ms_resnet34": {"image_size": 32},
    "ms_resnet19": {"image_size": 8},
    "vgg11": {"image_size": 16},
    "vgg16": {"image_size": 16},
    "cifarnet": {"image_size": 8},
}


def on_meta(name: str, **options: Any) -> SpikingNet:
    with torch.device("meta"):
        return build(name, **options)


def images(net: SpikingNet, size: int, count: int = 3) -> Tensor:
    return torch.randn(count, net.stem.in_channels, size, size, device=net.stem.weight.device)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("plain5", 5),
        ("plain20", 20),
        ("resnet8", 8),
        ("resnet17", 17),
        ("resnet19", 19),
        ("resnet34", 34),
        ("resnet34_large", 34),
        ("resnet50", 50),
        ("sew_resnet18", 18),
        ("sew_resnet34", 34),
        ("sew_resnet50", 50),
        ("sew_resnet19", 19),
        ("ms_resnet18", 18),
        ("ms_resnet34", 34),
        ("ms_resnet19", 19),
        ("vgg11", 9),  # one fully connected layer instead of three
        ("vgg16", 14),
        ("cifarnet", 8),
    ],
)
def test_layers(name: str, layers: int) -> None:
    """Layers with weights from input to output; shortcuts do not count."""
    weighted = [
        path
        for path, module in on_meta(name).named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in path
    ]
    assert len(weighted) == layers


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # convolutions 576 + 18432 + 36864, fc 262144 + 2570, tdBN 832
        ("plain5", 321_418),
        ("plain20", 4_828_106),
        ("resnet8", 77_786),
        ("resnet17", 1_872_523),
        # convolutions 3456 + 884736 + 3276800 + 8388608, fc 2097152 + 2570, tdBN 13824
        ("resnet19", 14_667_146),
        ("resnet34", 21_807_528),
        ("resnet34_large", 86_138_728),
        ("resnet50", 25_579_560),
        # torchvision's ResNet-18, -34 and -50, and the shortcut of a first stage with a stride instead of max pooling
        # (of 64 to 64 channels 4096 + 128; the bottleneck's is there anyway)
        ("sew_resnet18", 11_689_512 + 4224),
        ("sew_resnet34", 21_797_672 + 4224),
        ("sew_resnet50", 25_557_032),
        ("ms_resnet18", 11_689_512 + 4224),
        ("ms_resnet34", 21_797_672 + 4224),
        # resnet19 without the normalisation of its identity shortcuts: 2 * 128 * 3 + 2 * 256 * 2 + 2 * 512
        ("sew_resnet19", 14_667_146 - 2816),
        ("ms_resnet19", 14_667_146 - 2816),
        # the usual sizes of CIFAR-10's VGG-11 and VGG-16 with batch normalisation, whose convolutions have biases
        ("vgg11", 9_231_114 - 2752),
        ("vgg16", 14_728_266 - 4224),
        # convolutions 3456 + 294912 + 1179648 + 4718592 + 4718592, fc 33554432 + 524288 + 5130, tdBN 7936
        ("cifarnet", 45_006_986),
    ],
)
def test_parameters(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in on_meta(name).parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "multiplications", "precision"),
    [
        ("plain5", 4.910e6, 1e-3),
        ("plain20", 6.477e8, 1e-3),
        ("resnet8", 7.635e5, 1e-3),
        ("resnet17", 1.307e8, 1e-3),
        ("resnet19", 2.287e9, 1e-3),
        ("resnet34", 3.677e9, 1e-3),
        ("resnet34_large", 1.447e10, 1e-3),
        ("resnet50", 4.1e9, 1e-2),
        ("sew_resnet18", 1.827e9, 1e-3),
        ("sew_resnet34", 3.677e9, 1e-3),
        ("sew_resnet50", 4.1e9, 1e-2),
        ("sew_resnet19", 2.287e9, 1e-3),
        ("ms_resnet18", 1.827e9, 1e-3),
        ("ms_resnet34", 3.677e9, 1e-3),
        ("ms_resnet19", 2.287e9, 1e-3),
        ("vgg11", 1.529e8, 1e-3),
        ("vgg16", 3.132e8, 1e-3),
        ("cifarnet", 1.2457e9, 1e-4),
    ],
)
def test_multiplications_per_step(name: str, multiplications: float, precision: float) -> None:
    """Of one image and step without counting on sparse spikes: what the same network of real numbers would need."""
    net = on_meta(name)
    with FlopCounterMode(display=False) as counter:
        net.eval()(images(net, NATIVE_SIZE.get(name, 224), count=1), timesteps=1)
    assert counter.get_total_flops() / 2 == pytest.approx(multiplications, rel=precision)


@pytest.mark.parametrize(
    ("name", "size", "sizes"),
    [
        ("plain5", 34, [17, 9]),
        ("plain20", 32, [32]),
        ("resnet8", 8, [8, 4, 2]),
        ("resnet17", 32, [32, 16, 8]),
        ("resnet19", 32, [32, 16, 8]),
        ("resnet19", 42, [42, 21, 11]),
        ("resnet34", 224, [112, 56, 28, 14, 7]),
        ("resnet34_large", 224, [112, 56, 28, 14, 7]),
        ("resnet50", 224, [112, 56, 28, 14, 7]),
        ("sew_resnet18", 224, [112, 56, 28, 14, 7]),
        ("sew_resnet19", 32, [32, 16, 8]),
        ("ms_resnet19", 32, [32, 16, 8]),
        ("ms_resnet34", 224, [112, 56, 28, 14, 7]),
        ("vgg11", 32, [32, 16, 8, 4, 2]),
        ("vgg16", 32, [32, 16, 8, 4, 2]),
        ("cifarnet", 32, [32, 16, 8]),
    ],
)
def test_feature_maps(name: str, size: int, sizes: list[int]) -> None:
    net = on_meta(name, image_size=size)
    seen: list[int] = []
    for module in (net.norm if net.carries_currents else net.soma, *net.body):
        module.register_forward_hook(lambda _, __, out: seen.append(out.shape[-1]))
    net(images(net, size), timesteps=2)
    assert list(dict.fromkeys(seen)) == sizes


def test_pooled_feature_map_of_42_pixels() -> None:
    assert on_meta("resnet19", image_size=42).head.hidden.in_features == 512 * 5 * 5


@every_network
def test_output_shapes(name: str) -> None:
    size = NATIVE_SIZE.get(name, 224)
    net = on_meta(name, num_classes=13, in_channels=5)
    assert net(images(net, size), timesteps=2).shape == (2, 3, 13)
    assert net(torch.zeros(4, 3, 5, size, size, device="meta")).shape == (4, 3, 13)


class FirstStep:
    """A network after one training step on random images, with the firing rates seen on the way."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.net = build(name, **SMALL[name])
        self.rates: dict[str, float] = {}
        for path, module in self.net.named_modules():
            if isinstance(module, Soma):
                module.register_forward_hook(lambda _, __, out, path=path: self.rates.update({path: out.mean().item()}))
        for _ in range(2 if self.net.carries_currents else 1):  # whose blocks begin as if they were not there
            torch.optim.SGD(self.net.parameters(), lr=0.1).step()
            self.net.zero_grad()
            logits = self.net(images(self.net, SMALL[name]["image_size"]), timesteps=4)
            self.loss = nn.functional.cross_entropy(readout(logits), torch.tensor([1, 0, 7]))
            self.loss.backward()


@pytest.fixture(scope="module", params=MODELS)
def first_step(request: pytest.FixtureRequest) -> FirstStep:
    return FirstStep(request.param)


def test_every_parameter_learns(first_step: FirstStep) -> None:
    assert first_step.loss.isfinite()
    for path, parameter in first_step.net.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.isfinite().all(), path
        assert parameter.grad.any(), path
    before = [p.detach().clone() for p in first_step.net.parameters()]
    torch.optim.SGD(first_step.net.parameters(), lr=0.1).step()
    for p, old in zip(first_step.net.parameters(), before, strict=True):
        assert not torch.equal(p, old)


def test_every_soma_fires_moderately_at_initialisation(first_step: FirstStep) -> None:
    somas = [path for path, module in first_step.net.named_modules() if isinstance(module, Soma)]
    assert set(first_step.rates) == set(somas)
    for path, rate in first_step.rates.items():
        assert 0.05 < rate < 0.35, path


class BareNeurons(nn.Module):
    """A soma without normalisation."""

    def __init__(self, channels: int, branches: int = 1, *, decay: float = 0.25) -> None:
        super().__init__()
        self.decay = decay

    def forward(self, *xs: Tensor) -> Tensor:
        return lif(torch.stack(xs).sum(0), decay=self.decay, v_th=0.5, width=1.0)


@pytest.mark.parametrize("name", ["plain20", "resnet50"])
def test_spikes_die_out_without_normalisation(name: str) -> None:
    net = build(name, soma=BareNeurons, decay=0.5, **SMALL[name])
    rates: list[float] = []
    for module in net.modules():
        if isinstance(module, BareNeurons):
            assert module.decay == 0.5
            module.register_forward_hook(lambda _, __, out: rates.append(out.mean().item()))
    net(images(net, SMALL[name]["image_size"]), timesteps=4)
    assert rates[0] > 0.05
    assert rates[-1] == 0


def settled() -> SpikingNet:
    """A small network in float64 and evaluation, whose running statistics are those of a batch, so that it fires."""
    torch.manual_seed(0)
    net = build("resnet8", momentum=1.0).double()
    net(torch.randn(16, 1, 8, 8, dtype=torch.float64), timesteps=4)
    return net.eval()


def test_image_is_encoded_once() -> None:
    net = build("resnet8").double()
    seen: list[Tensor] = []
    net.stem.convolve = lambda x: seen.append(x) or type(net.stem).convolve(net.stem, x)
    net(images(net, 8).double(), timesteps=5)
    assert [list(x.shape) for x in seen] == [[1, 3, 1, 8, 8]]


@pytest.mark.parametrize("training", [True, False])
def test_image_equals_a_sequence_of_that_image(training: bool) -> None:
    """Outputs, running statistics and gradients, in float64: there, no spike flips through rounding."""
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    outcomes = []
    for static in (True, False):
        net = settled().train(training)
        logits = net(x, timesteps=5) if static else net(x.expand(5, -1, -1, -1, -1).contiguous())
        logits.square().sum().backward()
        outcomes.append([logits.detach(), *net.buffers(), *(p.grad for p in net.parameters())])
    for static, sequence in zip(*outcomes, strict=True):
        torch.testing.assert_close(static, sequence, rtol=1e-9, atol=1e-12)


def test_sequence_needs_no_timesteps_and_may_repeat_them() -> None:
    net = settled()
    x = torch.randn(4, 3, 1, 8, 8, dtype=torch.float64)
    logits = net(x)
    assert torch.equal(logits, net(x, timesteps=4))
    assert not torch.equal(logits[0], logits[1])


def test_steps_of_a_sequence_keep_their_order() -> None:
    net = settled()
    x = torch.randn(4, 3, 1, 8, 8, dtype=torch.float64)
    later = x.clone()
    later[2:] = 0
    before, after = net(x), net(later)
    torch.testing.assert_close(before[:2], after[:2], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(before[2:], after[2:])


def test_global_pooling_takes_larger_images() -> None:
    net = build("resnet8")
    assert net(torch.randn(2, 1, 12, 17), timesteps=3).shape == (3, 2, 10)


def test_neuron_settings_reach_every_soma() -> None:
    net = on_meta("resnet19", decay=0.5, v_th=0.3, width=0.6)
    somas = [module for module in net.modules() if isinstance(module, Soma)]
    assert len(somas) == 18
    assert {(soma.decay, soma.v_th, soma.width) for soma in somas} == {(0.5, 0.3, 0.6)}


def test_network_of_another_neuron_refuses_the_checkpoint() -> None:
    message = "Soma: the checkpoint was trained with decay 0.25 (here 0.5); build the network with these settings"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build("resnet8", decay=0.5).load_state_dict(build("resnet8").state_dict())


def net8() -> SpikingNet:
    return build("resnet8", in_channels=3)


def net19() -> SpikingNet:
    return on_meta("resnet19")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: build("resnet18"),
            "unknown network 'resnet18' (did you mean 'resnet8'?); choose one of "
            "resnet17, resnet19, resnet34, resnet34_large, resnet50, plain20, resnet8, plain5, "
            "sew_resnet18, sew_resnet34, sew_resnet50, sew_resnet19, ms_resnet18, ms_resnet34, ms_resnet19, "
            "vgg11, vgg16, cifarnet, "
            "or give the file that defines it with --plugin",
        ),
        (lambda: build("resnet8", num_classes=0), "expected at least one class, got num_classes=0"),
        (lambda: build("resnet19", image_size=7), "image_size 7 is too small for the strides: expected at least 8"),
        (lambda: build("resnet34", image_size=31), "image_size 31 is too small for the strides: expected at least 32"),
        (
            lambda: net8()(torch.randn(3, 8, 8), timesteps=2),
            "expected images [N, C, H, W] or a sequence [T, N, C, H, W], got [3, 8, 8]",
        ),
        (
            lambda: net8()(torch.randn(1, 2, 4, 3, 8, 8)),
            "expected images [N, C, H, W] or a sequence [T, N, C, H, W], got [1, 2, 4, 3, 8, 8]",
        ),
        (
            lambda: net8()(torch.randn(2, 1, 8, 8), timesteps=2),
            "expected 3 channels, got 1 in input [2, 1, 8, 8]",
        ),
        (
            lambda: net8()(torch.randn(4, 3, 2, 8, 8)),
            "expected 3 channels, got 2 in input [4, 3, 2, 8, 8]",
        ),
        (
            lambda: net8()(torch.randn(2, 3, 8, 8)),
            "images need timesteps of at least 1, got None; call network(x, timesteps=4)",
        ),
        (
            lambda: net8()(torch.randn(2, 3, 8, 8), timesteps=0),
            "images need timesteps of at least 1, got 0; call network(x, timesteps=4)",
        ),
        (
            lambda: net8()(torch.randn(2, 3, 8, 8), timesteps=-1),
            "images need timesteps of at least 1, got -1; call network(x, timesteps=4)",
        ),
        (
            lambda: net8()(torch.randn(2, 3, 8, 8), timesteps=2.0),
            "images need timesteps of at least 1, got 2.0; call network(x, timesteps=4)",
        ),
        (
            lambda: net8()(torch.randn(2, 3, 8, 8), timesteps="2"),
            "images need timesteps of at least 1, got '2'; call network(x, timesteps=4)",
        ),
        (
            lambda: net8()(torch.randn(4, 2, 3, 8, 8), timesteps=6),
            "timesteps=6 does not match the sequence, which has 4 timesteps",
        ),
        (
            lambda: net8()(torch.randn(4, 2, 3, 8, 8), timesteps="4"),
            "timesteps='4' does not match the sequence, which has 4 timesteps",
        ),
        (
            lambda: net8()(np.zeros((2, 3, 8, 8), np.float32), timesteps=2),
            "expected a tensor as input, got ndarray; convert it with torch.as_tensor",
        ),
        (
            lambda: net8()(torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8), timesteps=2),
            "expected floating-point input, got torch.uint8; convert it with .float()",
        ),
        (
            lambda: net8()(torch.randn(2, 3, 3, 8), timesteps=2),
            "images of 3 x 8 are too small for the strides: expected at least 4 pixels a side",
        ),
        (
            lambda: net8()(torch.randn(0, 3, 8, 8), timesteps=2),
            "expected at least one element in every dimension, got [0, 3, 8, 8]",
        ),
        (
            lambda: net19()(torch.randn(2, 3, 48, 32, device="meta"), timesteps=2),
            "expected images of 32 x 32, got 48 x 32",
        ),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_single_image_of_one_pixel_maps_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match=r"^expected more than one value per channel, got .*; use a larger batch$"):
        build("resnet8", image_size=4)(torch.randn(1, 1, 4, 4), timesteps=1)


@every_network
def test_all_layers_of_a_network_have_the_threshold_of_its_neurons(name: str) -> None:
    with torch.device("meta"):
        network = build(name, v_th=0.7)
    assert {layer.v_th for layer in normalisations(network)} == {0.7}


@pytest.mark.parametrize("size", [13, 14, 15, 16])
def test_hidden_layers_fit_images_of_any_size(size: int) -> None:
    assert build("plain5", image_size=size).eval()(torch.rand(1, 2, size, size), 1).shape == (1, 1, 10)
