"""Convolutions fold T into the batch, compute a held input once, and may be left to the soma."""

import copy
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase import kernels
from rheobase.models import build
from rheobase.nn import AvgPool2d, Conv2d, DeferredConv, Soma, hold, set_memory

T, N, C, H, W = 3, 4, 5, 6, 8
MODES = ["packed", "recompute"]


@pytest.mark.parametrize(
    ("synapse", "plain"),
    [(Conv2d(C, 7, 3, 2, padding=1), nn.Conv2d(C, 7, 3, 2, padding=1)), (AvgPool2d(2), nn.AvgPool2d(2))],
)
def test_synapse_treats_every_step_alike(synapse: nn.Module, plain: nn.Module) -> None:
    plain.load_state_dict(synapse.state_dict())
    x = torch.randn(T, N, C, H, W)
    torch.testing.assert_close(synapse(x), torch.stack([plain(x_t) for x_t in x]))


@pytest.mark.parametrize("memory", ["speed", *MODES])
@pytest.mark.parametrize("shown", [hold, lambda x, steps: x.expand(steps, -1, -1, -1, -1)], ids=["hold", "expand"])
def test_a_held_input_is_convolved_once(
    memory: str, shown: Callable[[Tensor, int], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    conv, soma = Conv2d(C, 7, 3, padding=1, bias=False).double(), Soma(7).double()
    set_memory(conv, memory)
    image = torch.randn(1, N, C, H, W, dtype=torch.float64, requires_grad=True)
    plain, held = conv.convolve(shown(image, T).contiguous()), conv(shown(image, T))
    assert held.shape == plain.shape
    assert held.stride(0) == 0
    torch.testing.assert_close(held, plain, rtol=1e-9, atol=1e-9)
    for use in (soma, lambda y: y.square().cumsum(0)):
        grads = []
        for y in (plain, held):
            out = use(y)
            weights = torch.arange(out.numel(), dtype=torch.float64).view_as(out) / out.numel()
            grads.append(torch.autograd.grad((out * weights).sum(), (image, conv.weight), retain_graph=True))
        for expected, found in zip(*grads, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

    images = []
    monkeypatch.setattr(kernels, "convolve", lambda x, *rest: images.append(len(x)) or torch.conv2d(x, *rest[:2]))
    conv(shown(image, T))
    assert images == [N]


def deferred(memory: str, **options: Any) -> tuple[DeferredConv, Tensor, Conv2d]:
    """A convolution of spikes that is left to a soma, what it gives, and its layer."""
    torch.manual_seed(5)
    conv = Conv2d(C, 7, 3, padding=1, **{"bias": False} | options).double()
    set_memory(conv, memory)
    x = torch.randn(T, N, C, H, W, dtype=torch.float64, requires_grad=True)
    y = conv(x)
    assert isinstance(y, DeferredConv)
    return y, conv.convolve(x), conv


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grads[0]


USES: dict[str, Callable[[Any], Tensor]] = {
    "two of them": lambda y: y + y,
    "a number before it": lambda y: 2 / (3 - y) + 2 * y,
    "a tensor before it": lambda y: torch.ones(W, dtype=torch.float64) * y,
    "in place": lambda y: operator.iadd(y, 1.5),
    "a part of it": lambda y: y[1:, 0],
    "minus": operator.neg,
    "power": lambda y: y**2,
    "matrix product": lambda y: y @ torch.ones(W, 2, dtype=torch.float64),
    "steps": lambda y: sum(y) + len(y),
    "a method": lambda y: y.view(T * N, 7, -1).mean(2),
    "an attribute": lambda y: y.mT,
    "a function": torch.sigmoid,
    "a function of a list": lambda y: torch.stack([y, y.relu()]),
    "an argument by name": lambda y: torch.add(input=y, other=y),
    "a function of nn": nn.functional.relu,
    "another module": nn.Sequential(nn.ReLU(), nn.Linear(W, 3).double()),
    "a module of its own": lambda y: nn.BatchNorm3d(N).double()(y),
    "pooling": AvgPool2d(2),
    "held": lambda y: hold(y[:1], 2),
    "another convolution": Conv2d(7, 2, 3).double(),
    "an autograd function": lambda y: _Cube.apply(y.carried_out() if isinstance(y, DeferredConv) else y),
    "changed in place": lambda y: y.mul_(2),
    "after an element was set": lambda y: y.__setitem__(0, 1.0) or Soma(7).double()(y),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("memory", MODES)
def test_whatever_is_done_with_a_deferred_convolution_carries_it_out(memory: str, use: Callable[[Any], Tensor]) -> None:
    y, plain, conv = deferred(memory)
    results = []
    for out in (use(y), use(plain)):
        grads = torch.autograd.grad(out.square().sum(), conv.weight)
        results.append((out, *grads))
    assert isinstance(results[0][0], Tensor)
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)
    assert results[0][1].any()


def test_a_deferred_convolution_can_be_looked_at_without_gradients() -> None:
    y, plain, conv = deferred("packed")
    with torch.no_grad():
        assert y.shape == plain.shape
        assert (y > 0).any()
        assert float(y.max()) == float(plain.max())
    torch.autograd.grad(y.sum(), conv.weight)
    assert repr(y).startswith("DeferredConv(Conv2d(5, 7,")
    assert not hasattr(y, "__deepcopy__")
    with pytest.raises(AttributeError):
        _ = y.no_such_attribute


@pytest.mark.parametrize("options", [{"bias": True}, {"padding_mode": "circular"}, {"padding": "same"}], ids=str)
def test_a_convolution_that_a_soma_cannot_save_memory_on_is_computed_at_once(options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    conv = Conv2d(**{"in_channels": C, "out_channels": 7, "kernel_size": 3, "padding": 1, "bias": False} | options)
    set_memory(conv, "packed")
    x = torch.randn(T, N, C, H, W, requires_grad=True)
    with pytest.warns(UserWarning, match=r"memory 'packed': .* runs in mode 'speed', because it has"):
        y = conv(x)
    assert torch.equal(y, conv.convolve(x))
    assert torch.equal(Soma(7)(conv(x)), Soma(7)(y))  # and says so once


def test_the_type_is_that_of_autocast_when_the_convolution_was_called() -> None:
    conv = Conv2d(C, 7, 3, bias=False)
    set_memory(conv, "packed")
    with torch.autocast("cpu", torch.bfloat16):
        first, second = conv(torch.randn(T, N, C, H, W)), conv(torch.randn(T, N, C, H, W))
    assert Soma(7)(first).dtype == second.dtype == torch.bfloat16


@pytest.mark.parametrize("use", [Soma(7).double(), torch.sin], ids=["soma", "sin"])
@pytest.mark.parametrize("which", ["input", "weight"])
def test_a_change_in_place_before_the_convolution_is_carried_out_is_noticed(
    use: Callable[[Any], Tensor], which: str
) -> None:
    conv, x = Conv2d(C, 7, 3, bias=False).double(), torch.randn(T, N, C, H, W, dtype=torch.float64, requires_grad=True)
    set_memory(conv, "packed")
    y = conv(x)
    with torch.no_grad():
        (x if which == "input" else conv.weight).zero_()
    with pytest.raises(ValueError, match=r"the input or weight of Conv2d.* was changed in place before its output"):
        use(y)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("memory", MODES)
def test_memory_of_a_whole_network(memory: str, static: bool) -> None:
    """Stem included, which feeds no soma straight away where the image is static."""
    results = []
    for mode in ("speed", memory):
        torch.manual_seed(6)
        network = build("resnet8").double()
        set_memory(network, mode)
        x = torch.randn(*(() if static else (T,)), N, 1, 8, 8, dtype=torch.float64)
        logits = network(x, T)
        (logits * torch.randn_like(logits)).sum().backward()
        results.append([logits, *(p.grad for p in network.parameters())])
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found, expected)


class Residual(nn.Module):
    """Membrane shortcuts: convolutions are summed before the neurons, and the sum goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.soma1 = Conv2d(2, C, 3, padding=1, bias=False), Conv2d(C, C, 1, bias=False), Soma(C)
        self.second, self.soma2 = Conv2d(C, C, 3, padding=1, bias=False), Soma(C)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.first(self.soma1(x))
        return x + self.second(self.soma2(x))


@pytest.mark.parametrize("memory", MODES)
def test_sums_of_convolutions(memory: str) -> None:
    network = Residual().double()
    x = torch.randn(T, N, 2, H, W, dtype=torch.float64)
    results = []
    for mode in ("speed", memory):
        twin = copy.deepcopy(network)
        set_memory(twin, mode)
        out = twin(x)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in twin.parameters())])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_convolution_that_keeps_its_whole_input_says_so_once() -> None:
    network = nn.Sequential(Soma(C), AvgPool2d(2), Conv2d(C, 7, 1, bias=False), Soma(7))
    set_memory(network, "packed")
    x = torch.randn(T, N, C, H, W, requires_grad=True)
    expected = (
        r"^memory 'packed': the convolution '2' Conv2d\(5, 7, .* keeps its whole input, because the input may not "
    )
    with pytest.warns(UserWarning, match=expected) as seen:
        network(x)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(x)
        network[2]._warned = False
        network[3](network[2](torch.randn(T, N, C, H, W)))  # the input of a network is no news


@pytest.mark.parametrize(("given", "computed"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float64)])
def test_a_deferred_convolution_has_the_autocast_of_its_call(given: torch.dtype, computed: torch.dtype) -> None:
    """Autocast leaves doubles alone."""
    conv, spikes = Conv2d(3, 5, 3, bias=False).to(given), torch.ones(4, 2, 3, 6, 7, dtype=given).requires_grad_()
    kernels.mark_spikes(spikes)
    conv.memory = "packed"
    with torch.autocast("cpu", torch.bfloat16):
        deferred, other = conv(spikes), conv(spikes)
    branch = deferred.branch()
    assert (branch.x.dtype, branch.weight.dtype) == (computed, computed)
    assert other.carried_out().dtype == computed
