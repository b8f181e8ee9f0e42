"""Memory modes: the same network, keeping less for the backward pass."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rheobase import kernels, models
from rheobase.functional import readout
from rheobase.kernels import fused, saving
from rheobase.nn import AvgPool2d, Conv2d, Soma, set_memory

MODES = ["packed", "recompute"]


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Kept:
    """Bytes that a forward pass keeps for its backward pass, beside parameters; each memory counted once."""

    def __init__(self, network: nn.Module) -> None:
        self.known = {p.untyped_storage().data_ptr() for p in network.parameters()}
        self.bytes = 0

    def __enter__(self) -> "Kept":
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda x: x)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def _count(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return x


def train_once(
    name: str, memory: str, *, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], int]:
    """Logits, gradients, running statistics and bytes kept of one training pass."""
    torch.manual_seed(1)
    network = models.build(name, memory=memory, **options).to(dtype)
    images = torch.randn(3, network.stem.in_channels, 32, 32, dtype=dtype)
    with Kept(network) as kept:
        logits = network(images, timesteps=5)
        loss = cross_entropy(readout(logits), torch.arange(3))
    loss.backward()
    grads = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return logits, grads, dict(network.named_buffers()), kept.bytes


OTHER = {"surrogate": "atan", "reset": "soft", "reset_gradient": False, "learn_decay": "channel"}


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet8", {}), ("plain20", {"channels": 8}), ("resnet8", OTHER)],
    ids=["resnet8", "plain20", "another neuron"],
)
@pytest.mark.parametrize("memory", MODES)
def test_equals_speed_bit_for_bit(name: str, options: dict[str, Any], memory: str) -> None:
    logits, grads, statistics, _ = train_once(name, "speed", **options)
    saving_logits, saving_grads, saving_statistics, _ = train_once(name, memory, **options)
    assert torch.equal(saving_logits, logits)
    assert saving_grads.keys() == grads.keys()
    assert ("soma.decay_logit" in grads) == ("learn_decay" in options)
    for key, grad in grads.items():
        assert torch.equal(saving_grads[key], grad), key
    for key, value in statistics.items():  # updated once, also where outputs are computed again
        assert torch.equal(saving_statistics[key], value), key


def test_each_mode_keeps_less_than_the_one_before() -> None:
    speed, packed, recompute = (
        train_once("plain20", memory, dtype=torch.float32, channels=16)[3] for memory in ("speed", *MODES)
    )
    step = 5 * 3 * 16 * 32 * 32 * 4  # bytes of a layer's spikes, and of its synapse's output
    assert speed - packed == pytest.approx(17 * step * (1 - 1 / 32), rel=0.02)  # 17 convolutions are fed with spikes
    assert packed - recompute == pytest.approx(17 * step, rel=0.02)


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("frozen", [False, True], ids=["all learn", "frozen somas"])
def test_evaluation_with_gradients(memory: str, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments are constants then, and where no soma learns either, nobody takes sums."""
    grads, taken, take = [], [], fused.backward_sums
    monkeypatch.setattr(fused, "backward_sums", lambda *arguments: taken.append(1) or take(*arguments))
    for mode in ("speed", memory):
        torch.manual_seed(2)
        network = models.build("resnet8", memory=mode).double().eval()
        for soma in (m for m in network.modules() if isinstance(m, Soma)):
            nn.init.uniform_(soma.running_var, 0.5, 2)
            soma.requires_grad_(not frozen)
        network(torch.randn(2, 1, 8, 8, dtype=torch.float64), timesteps=3).sum().backward()
        grads.append([p.grad for p in network.parameters() if p.requires_grad])
    for fast, other in zip(*grads, strict=True):
        assert torch.equal(fast, other)
    assert bool(taken) != frozen


@pytest.mark.parametrize("wanted", ["weight", "bias", "decay_logit"])
@pytest.mark.parametrize("memory", MODES)
def test_a_parameter_that_learns_alone_in_evaluation_has_its_gradient(memory: str, wanted: str) -> None:
    torch.manual_seed(1)
    conv = Conv2d(3, 5, 3, padding=1, bias=False).double()
    soma = Soma(5, learn_decay="channel").double().eval()
    for name, p in soma.named_parameters():
        p.requires_grad_(name == wanted)
    spikes = (torch.rand(4, 2, 3, 6, 7) < 0.5).double().requires_grad_()
    kernels.mark_spikes(spikes)
    found = []
    for conv.memory in ("speed", memory):
        out = soma(conv(spikes))
        found.append(torch.autograd.grad(out, getattr(soma, wanted), torch.ones_like(out))[0])
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.parametrize("memory", MODES)
def test_without_gradients_nothing_is_left_to_the_soma(memory: str) -> None:
    network = models.build("resnet8", memory=memory)
    with torch.no_grad():
        assert isinstance(network.body[0].conv1(torch.zeros(2, 1, 16, 8, 8)), Tensor)
        assert network(torch.randn(2, 1, 8, 8), timesteps=3).shape == (3, 2, 10)


def test_on_a_gpu_bit_for_bit(triton_device: str) -> None:
    if triton_device != "cuda":
        pytest.skip("needs a GPU")
    with torch.device("cuda"), torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        results = []
        for memory in ("speed", "packed"):
            torch.manual_seed(1)
            network = models.build("resnet19", memory=memory).to(memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.bfloat16):
                logits = network(torch.randn(4, 3, 32, 32), timesteps=3)
            cross_entropy(readout(logits).float(), torch.arange(4)).backward()
            results.append([p.grad for p in network.parameters()])
    for fast, packed in zip(*results, strict=True):
        assert torch.equal(fast, packed)


class Later(NamedTuple):
    """A convolution that the soma carries out."""

    carried: kernels.Branch

    def branch(self) -> kernels.Branch:
        return self.carried


def fire_beside_spikes(
    values: Tensor, kernel: Tensor, upstream: Tensor, *, later: bool, marked: bool = True, keep_output: bool = True
) -> list[Tensor]:
    """Spikes, moments and gradients of a soma that receives spikes and a convolution of them."""
    torch.manual_seed(0)
    own = [t.to(values).requires_grad_() for t in (kernel, *torch.rand(2, 2, values.shape[2]))]
    s = values.clone().requires_grad_()
    if marked:
        kernels.mark_spikes(s)
    synapse = kernels.Synapse(kernels.Window((1, 1), (1, 1), (1, 1), 1), keep_output)
    conv = kernels.Branch(s, marked, synapse, own[0])
    spikes, moments = kernels.fire(
        [Later(conv) if later else conv.output(), s], *own[1:], decay=0.3, v_th=0.6, width=0.9, eps=1e-4,
        pack=keep_output, backend="triton",
    )  # fmt: skip
    return [spikes, *moments, *torch.autograd.grad(spikes, [s, *own], upstream)]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("keep_output", [True, False])
@pytest.mark.parametrize("marked", [True, False])
def test_a_shortcut_of_spikes_is_read_from_bits(
    steps: int, keep_output: bool, marked: bool, triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits come out as from the spikes themselves, in float32."""
    with torch.device(triton_device):
        kernel, upstream = torch.randn(5, 5, 3, 3), torch.randn(steps, 4, 6, 2, 5).movedim(-1, 2)
        values = (torch.rand(steps, 4, 6, 2, 5) < 0.4).float().movedim(-1, 2)
    received, run = [], saving.run_forward
    monkeypatch.setattr(
        saving, "run_forward", lambda xs, *rest: received.append(fused.are_bits(xs[1])) or run(xs, *rest)
    )
    results = [
        fire_beside_spikes(values, kernel, upstream, later=later, marked=marked, keep_output=keep_output)
        for later in (False, True)
    ]
    assert received == [marked and steps != 3]
    assert 0 < results[0][0].mean() < 1
    for plain, packed in zip(*results, strict=True):
        assert torch.equal(plain, packed)


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {  # of spikes, in memory that is not dense or in another order
    "the same at all timesteps": lambda grad: grad[:1].expand_as(grad),
    "part of a larger batch": lambda grad: torch.cat([grad.movedim(2, -1)] * 2, 1).movedim(-1, 2)[:, : grad.shape[1]],
    "channels first": Tensor.contiguous,
}


@pytest.mark.parametrize("layout", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("keep_output", [True, False])
def test_a_shortcut_is_read_from_bits_for_every_gradient(
    layout: Callable[[Tensor], Tensor], keep_output: bool, triton_device: str
) -> None:
    with torch.device(triton_device):
        kernel, upstream = torch.randn(5, 5, 3, 3), layout(torch.randn(4, 3, 6, 2, 5).movedim(-1, 2))
        values = (torch.rand(4, 3, 6, 2, 5) < 0.4).float().movedim(-1, 2)
    results = [
        fire_beside_spikes(values, kernel, upstream, later=later, keep_output=keep_output) for later in (False, True)
    ]
    for plain, packed in zip(*results, strict=True):
        assert torch.equal(plain, packed)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown memory mode 'tiny'; choose one of speed, packed, recompute"):
        models.build("resnet8", memory="tiny")


@pytest.mark.parametrize("memory", MODES)
def test_a_single_value_per_channel_is_refused(memory: str) -> None:
    synapse, soma = Conv2d(3, 5, 1, bias=False), Soma(5)
    set_memory(synapse, memory)
    with pytest.raises(ValueError, match="more than one value per channel"):
        soma(synapse(torch.zeros(1, 1, 3, 1, 1)))


class PooledShortcut(nn.Module):
    """Somas whose branches are spikes, a convolution of pooled spikes, and pooled spikes themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Soma(4), Soma(4, branches=2)
        self.conv, self.pooled, self.pool = Conv2d(4, 4, 2, 2, bias=False), Conv2d(4, 4, 1, bias=False), AvgPool2d(2)

    def forward(self, x: Tensor, direct: bool) -> Tensor:
        s = self.first(x)
        return self.second(self.conv(s), self.pool(s) if direct else self.pooled(self.pool(s)))


@pytest.mark.filterwarnings("ignore:memory .* keeps its whole input")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("memory", MODES)
def test_what_is_no_spike_is_kept_whole(memory: str, direct: bool) -> None:
    results = []
    for mode in ("speed", memory):
        torch.manual_seed(3)
        network, x = PooledShortcut().double(), torch.randn(3, 5, 4, 8, 6, dtype=torch.float64)
        set_memory(network, mode)
        out = network(x.requires_grad_(), direct)
        out.backward(torch.randn_like(out))
        assert x.grad is not None
        assert x.grad.any()
        results.append([out, x.grad, *(p.grad for p in network.parameters() if p.grad is not None)])
    for expected, found in zip(*results, strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("memory", MODES)
def test_branches_of_different_shapes_are_refused(memory: str) -> None:
    conv = Conv2d(8, 8, 3, padding=(0, 1), bias=False)
    set_memory(conv, memory)
    s = (torch.rand(3, 4, 8, 6, 7) > 0.5).float()
    with pytest.raises(ValueError, match="shape"):
        Soma(8, branches=2)(conv(s), s)


@pytest.mark.parametrize(("given", "expected"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float64)])
@pytest.mark.parametrize("memory", ["speed", *MODES])
def test_under_autocast_the_type_is_that_of_autocast(memory: str, given: torch.dtype, expected: torch.dtype) -> None:
    soma, conv = Soma(4).to(given), Conv2d(4, 4, 3, padding=1, bias=False).to(given)
    set_memory(conv, memory)
    s = (torch.rand(3, 2, 4, 5, 6) > 0.5).to(given)
    with torch.autocast("cpu", torch.bfloat16):
        out = soma(conv(s))
        out.sum().backward()
    assert out.dtype == expected
    assert conv.weight.grad is not None


class Fed(nn.Module):
    """A convolution behind a soma, with something in between."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.first, self.conv, self.second = Soma(4), Conv2d(4, 6, 1, bias=False), Soma(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.between(self.first(x))))


def feed_once(memory: str, between: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], int]:
    """Spikes and gradients, and bytes kept of what the convolution reads."""
    torch.manual_seed(7)
    network, x = Fed(between).double(), torch.randn(5, 3, 4, 8, 6, dtype=torch.float64, requires_grad=True)
    set_memory(network, memory)
    with torch.no_grad():
        seen = network.between(network.first(x)).numel()
    with Kept(network) as kept:
        s = network.between(network.first(x))
        before = kept.bytes
        out = network.second(network.conv(s))
    out.backward(torch.randn_like(out))
    outputs = 6 * 8 * seen // 4 if memory == "packed" else 0
    statistics = 6 * 8 * 3  # mean, variance, number of values
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    return [out, x.grad, *grads], kept.bytes - before - outputs - statistics


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "steps": lambda s: s[1:4],
    "a view": lambda s: s.view(3, 5, 4, 8, 6),
    "a view of a view": lambda s: s[:, 1:].transpose(3, 4),
    "a crop": lambda s: s[..., 1:-1, ::2],
    "a part of the batch": lambda s: s.narrow(1, 0, 2),
}
NO_SPIKES: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum (SEW)": lambda s: s + s.flip(0),
    "a view of a sum": lambda s: (s + s.flip(0))[1:],
    "weighted": lambda s: 0.5 * s,
    "other numbers behind a copy": lambda s: s.clone().mul_(3),
    "a part of a copy that was changed": lambda s: _changed(s.clone())[1:],
}


def _changed(s: Tensor) -> Tensor:
    kernels.mark_spikes(s)
    s[0] += 1
    return s


@pytest.mark.parametrize("between", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("memory", MODES)
def test_of_views_of_spikes_bits_are_kept(memory: str, between: Callable[[Tensor], Tensor]) -> None:
    expected, _ = feed_once("speed", between)
    found, kept = feed_once(memory, between)
    values = found[0].numel() // 6 * 4
    assert kept == -(-values // 8)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:memory .* keeps its whole input")
@pytest.mark.parametrize("between", NO_SPIKES.values(), ids=NO_SPIKES.keys())
@pytest.mark.parametrize("memory", MODES)
def test_other_numbers_are_never_kept_as_bits(memory: str, between: Callable[[Tensor], Tensor]) -> None:
    expected, _ = feed_once("speed", between)
    found, _ = feed_once(memory, between)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory", MODES)
def test_a_second_backward_pass_gives_the_same_gradients(memory: str) -> None:
    """What the first one overwrites is not what was kept."""
    network = models.build("resnet8", memory=memory).double()
    loss = network(torch.randn(2, 1, 8, 8, dtype=torch.float64), timesteps=3).square().sum()
    first, second = (torch.autograd.grad(loss, list(network.parameters()), retain_graph=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("memory", MODES)
def test_three_branches(memory: str) -> None:
    results = []
    for mode in ("speed", memory):
        torch.manual_seed(8)
        first, convs, soma = Soma(4), [Conv2d(4, 4, k, padding=k // 2, bias=False) for k in (1, 3)], Soma(4, branches=3)
        network = nn.ModuleList([first, *convs, soma]).double()
        set_memory(network, mode)
        s = first(torch.randn(3, 2, 4, 5, 6, dtype=torch.float64))
        out = soma(convs[0](s), s, convs[1](s))
        out.backward(torch.randn_like(out))
        results.append([out, *(p.grad for p in network.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)  # three gradients, added in another order
