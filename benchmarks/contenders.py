"""The contenders: one training step of the same network, built and run in different ways."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import peers
from benchmarks.peers import LoopSoma, ReluSoma, SnnTorchSoma, SpikingJellySoma
from rheobase import models
from rheobase.functional import readout
from rheobase.kernels.fused import one_step_if_static
from rheobase.train.capture import Step

Forward = Callable[[Tensor], Tensor]  # images [N, 3, H, W] -> logits [T, N, K]


class Usual(NamedTuple):
    """The default sizes for a network."""

    image_size: int
    batch: int
    """On a GPU."""


USUAL = {"resnet34": Usual(224, 48), "resnet50": Usual(224, 32)}
USUALLY = Usual(32, 256)  # ResNet-19 and all others


@dataclass(frozen=True)
class Setting:
    """The network, sizes and device of a measurement."""

    timesteps: int
    batch: int
    device: str
    network: str = "resnet19"
    image_size: int = 32
    half: bool = False
    """Whether to compute in bfloat16."""

    @property
    def memory_format(self) -> torch.memory_format:
        """Memory order of images and weights."""
        return torch.channels_last

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of this setting."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.half)

    def images(self) -> Tensor:
        """Return a batch of noise."""
        shape = (self.batch, 3, self.image_size, self.image_size)
        return torch.randn(shape, device=self.device).to(memory_format=self.memory_format)

    def build(self, soma: models.SomaFactory | None = None, **options: Any) -> nn.Module:
        """Build our network, or the same network with the somas of another library and torch's own convolutions."""
        ours = {} if soma is None else {"soma": soma}
        net: nn.Module = models.build(self.network, in_channels=3, image_size=self.image_size, **ours, **options)
        if soma is not None:
            net = peers.with_torch_convolutions(net)
        return net.to(device=self.device, memory_format=self.memory_format)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Contender:
    """One way to build and run the network."""

    what: str
    make: Callable[[Setting], tuple[nn.Module, Forward]]
    graph: bool = False  # captured as a CUDA graph on a GPU
    same: str = ""  # equal to the law in its "spikes", or also in its "gradients"; checked in float64
    neuron: dict[str, Any] = field(default_factory=dict)  # settings that differ from the paper's


def _rheobase(setting: Setting, memory: str, **neuron: Any) -> tuple[nn.Module, Forward]:
    net = setting.build(memory=memory, **neuron)
    forward = _as_trained(net, torch.bfloat16 if setting.half else None)
    return net, lambda images: forward(images, setting.timesteps)


def _as_trained(net: nn.Module, dtype: torch.dtype | None) -> Callable[..., Tensor]:
    """Return the network as our own training step calls it, if the sources of the checkout have this function."""
    try:
        from rheobase.train.casting import in_few_kernels
    except ImportError:
        return net
    return in_few_kernels(net, dtype)


def _loop(setting: Setting, compiled: bool = False, **neuron: Any) -> tuple[nn.Module, Forward]:
    net = setting.build(soma=LoopSoma, **neuron)
    run = torch.compile(net, dynamic=False) if compiled else net
    return net, partial(run, timesteps=setting.timesteps)


def _relu(setting: Setting, compiled: bool = False) -> tuple[nn.Module, Forward]:
    net = setting.build(soma=ReluSoma)
    run = torch.compile(net, dynamic=False) if compiled else net

    def forward(images: Tensor) -> Tensor:  # T * N images, as many as the others process over all timesteps
        many = images.repeat(setting.timesteps, 1, 1, 1).contiguous(memory_format=setting.memory_format)
        return run(many[None]).view(setting.timesteps, setting.batch, -1)

    return net, forward


def _spikingjelly(setting: Setting, surrogate: str, compiled: bool = False) -> tuple[nn.Module, Forward]:
    net = setting.build(soma=partial(SpikingJellySoma, surrogate=surrogate))
    if setting.half and setting.device == "cuda" and surrogate != "Rect":  # its kernels have no rectangular surrogate
        peers.store_spikingjelly_in_bfloat16(net)
    run = torch.compile(net, dynamic=False) if compiled else net

    def forward(images: Tensor) -> Tensor:
        peers.reset_spikingjelly(net)
        return run(images, timesteps=setting.timesteps)

    return net, forward


def _snntorch(setting: Setting) -> tuple[nn.Module, Forward]:
    net = setting.build(soma=SnnTorchSoma)

    def forward(images: Tensor) -> Tensor:
        peers.reset_snntorch(net)
        return torch.cat([net(images[None]) for _ in range(setting.timesteps)])

    return net, forward


def _on_gpu(make: Callable[[Setting], tuple[nn.Module, Forward]], setting: Setting) -> tuple[nn.Module, Forward]:
    if setting.device != "cuda":
        raise peers.Unavailable("needs a GPU")
    return make(setting)


FLOOR = "floor"
BEFORE = "before-"  # prefix of our contenders when they run the sources of another checkout
TRIANGLE = "PiecewiseQuadratic"  # of the surrogates in its kernels, the nearest to the paper's
CONTENDERS = {
    "rheobase-speed": Contender("memory='speed'", partial(_rheobase, memory="speed"), True, "gradients"),
    "rheobase-packed": Contender("memory='packed'", partial(_rheobase, memory="packed"), True, "gradients"),
    "rheobase-recompute": Contender("memory='recompute'", partial(_rheobase, memory="recompute"), True, "gradients"),
    "loop": Contender("plain PyTorch, loop over time", _loop),
    "loop-compiled": Contender("torch.compile of the loop", partial(_loop, compiled=True)),
    "relu": Contender("ReLU network of this shape, T * N images", _relu),
    "relu-graph": Contender("the same", partial(_on_gpu, _relu), True),
    "relu-compiled": Contender("torch.compile of that", partial(_relu, compiled=True), True),
    "spikingjelly": Contender(
        "its best, triangular surrogate", partial(_spikingjelly, surrogate=TRIANGLE), True, "spikes"
    ),
    "spikingjelly-compiled": Contender(
        "torch.compile of that", partial(_spikingjelly, surrogate=TRIANGLE, compiled=True), True
    ),
    "spikingjelly-rect": Contender(
        "rectangular surrogate", partial(_spikingjelly, surrogate="Rect"), True, "gradients"
    ),
    "snntorch": Contender("loop over time, no tdBN", _snntorch),
}


def _variant(what: str, **neuron: Any) -> Contender:
    return Contender(what, partial(_rheobase, memory="speed", **neuron), True, "gradients", neuron)


VARIANTS = {  # our other neurons
    "rheobase-triangle": _variant("triangular surrogate", surrogate="triangle"),
    "rheobase-sigmoid": _variant("sigmoid surrogate", surrogate="sigmoid"),
    "rheobase-atan": _variant("arctan surrogate", surrogate="atan"),
    "rheobase-soft": _variant("soft reset", reset="soft"),
    "rheobase-detached": _variant("no gradient through the reset", reset_gradient=False),
    "rheobase-decay-layer": _variant("a learnt decay per layer", learn_decay="layer"),
    "rheobase-decay-channel": _variant("a learnt decay per channel", learn_decay="channel"),
}


def contender(name: str) -> Contender:
    """Return the contender with this name, with or without the prefix for another checkout."""
    name = name.removeprefix(BEFORE)
    return VARIANTS[name] if name in VARIANTS else CONTENDERS[name]


def training_step(net: nn.Module, forward: Forward, setting: Setting) -> Step:
    """Return the training step of all contenders: forward, cross-entropy of the mean output, backward, update."""
    images = setting.images()
    targets = torch.randint(10, (setting.batch,), device=setting.device)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)

    def step() -> tuple[Tensor]:
        optimiser.zero_grad()
        with setting.autocast():
            loss = cross_entropy(readout(forward(images)).float(), targets)
        loss.backward()
        optimiser.step()
        return (loss.detach(),)

    return step


def floor_step(setting: Setting) -> Step:
    """Return a step of only the convolutions and linear layers, forward and backward, on spikes of the same shapes."""
    dtype = torch.bfloat16 if setting.half else torch.float32
    work = []
    tensors: dict[tuple[int, ...], Tensor] = {}

    def remembered(shape: torch.Size, spikes: bool) -> Tensor:
        if (key := (int(spikes), *shape)) not in tensors:
            x = torch.rand(shape, device=setting.device) < 0.2 if spikes else torch.randn(shape, device=setting.device)
            layout = setting.memory_format if len(shape) == 4 else torch.contiguous_format
            tensors[key] = x.to(dtype).contiguous(memory_format=layout).requires_grad_(spikes)
        return tensors[key]

    for synapse, x_shape, y_shape in synapses(setting):
        layer = synapse.to_empty(device=setting.device)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.05)
        layer.to(dtype=dtype, memory_format=setting.memory_format)  # type: ignore[call-overload]
        x, grad = remembered(x_shape, spikes=True), remembered(y_shape, spikes=False)
        wanted = [*layer.parameters(), *([] if x_shape[1] == 3 else [x])]  # images need no gradient
        base: Any = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.Linear  # our layers would fold T
        work.append((partial(base.forward, layer), x, grad, wanted))

    def step() -> tuple[()]:
        for call, x, grad, wanted in work:
            torch.autograd.grad(call(x), wanted, grad)
        return ()

    return step


def synapses(setting: Setting) -> list[tuple[nn.Module, torch.Size, torch.Size]]:
    """Return every convolution and linear layer on the meta device, and the shapes it maps, with T and N folded."""
    with torch.device("meta"):
        net = models.build(setting.network, in_channels=3, image_size=setting.image_size, soma=LoopSoma)
        images = torch.empty(setting.batch, 3, setting.image_size, setting.image_size)
    found: list[tuple[nn.Module, torch.Size, torch.Size]] = []

    def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        x, y = map(one_step_if_static, (inputs[0], output))  # a static image is convolved once
        found.append((module, x.flatten(0, 1).shape, y.flatten(0, 1).shape))

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(note)
    net(images, timesteps=setting.timesteps)
    return found


def difference_from_law(contender: Contender, setting: Setting) -> float:
    """Return the largest relative difference from the law on a small network with equal weights, in float64.

    Compare the logits, which differ as soon as one spike does. If the contender claims equal gradients, compare also
    the gradients of every convolution and linear layer.
    """
    small = replace(setting, network="resnet8", image_size=8, timesteps=5, batch=3, half=False)
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        (law, law_forward), (net, forward) = _loop(small, **contender.neuron), contender.make(small)
        images = small.images()
    finally:
        torch.set_default_dtype(usual)
    synaptic = [name for name, _ in law.named_parameters() if "soma" not in name]
    with torch.no_grad():
        for name in synaptic:
            net.get_parameter(name).copy_(law.get_parameter(name))
    expected, found = law_forward(images), forward(images)
    pairs = [(expected, found)]
    if contender.same == "gradients":
        upstream = torch.randn_like(expected)
        expected.backward(upstream)
        found.backward(upstream)
        pairs += [(law.get_parameter(name).grad, net.get_parameter(name).grad) for name in synaptic]  # type: ignore[misc]
    with torch.no_grad():
        return max(float((b - a).abs().max() / a.abs().max()) for a, b in pairs)
