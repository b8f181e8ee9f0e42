"""The CPU's 3x3 convolution against torch's."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase import kernels
from rheobase.deploy.convolution import convolution
from rheobase.kernels import winograd
from rheobase.nn import Conv2d, Soma
from rheobase.train.switches import threads

LAST = torch.channels_last
SHAPES = [(1, 2, 3, 4, 6), (5, 7, 9, 6, 10), (3, 1, 1, 2, 2), (2, 5, 4, 18, 8), (3, 5, 4, 8, 12), (2, 3, 6, 16, 4)]


@pytest.fixture(autouse=True)
def _worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the method on any CPU."""
    monkeypatch.setattr(winograd, "WORTHWHILE", True)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Each has its own images, on a machine with one core too."""
    with threads(2):
        yield


def _tensors(n: int, c: int, o: int, h: int, w: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(n, c, h, w, dtype=dtype).contiguous(memory_format=LAST)
    return x.requires_grad_(), (torch.randn(o, c, 3, 3, dtype=dtype) / (3 * c**0.5)).requires_grad_()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("images", [0, 1, 2, 100])  # 0: one row of tiles at a time
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("two_threads")
def test_output_and_gradients_equal_torch(
    shape: tuple[int, ...], images: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shared:
        monkeypatch.setattr(winograd, "_OWN_MATRICES", 0)
    monkeypatch.setattr(winograd, "_TILES", images * shape[3] * shape[4] // 4)  # at a time, the last ones fewer
    monkeypatch.setattr(winograd, "_CACHED", 0)
    x, weight = _tensors(*shape)  # type: ignore[misc]
    expected, found = torch.conv2d(x, weight, padding=1), winograd.convolve(x, weight)
    assert found.is_contiguous(memory_format=LAST)
    upstream = torch.randn_like(expected)
    pairs = zip(
        (expected, *torch.autograd.grad(expected, (x, weight), upstream)),
        (found, *torch.autograd.grad(found, (x, weight), upstream)),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


def test_gradients_of_any_memory_order() -> None:
    x, weight = _tensors(3, 4, 5, 6, 8)
    grad = torch.randn(3, 6, 8, 5, dtype=torch.float64).permute(0, 3, 1, 2)
    for a, b in zip(
        winograd.gradients(grad, x, weight), winograd.gradients(grad.contiguous(), x.contiguous(), weight), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("m", [2, 4])
def test_kept_weights_and_bias(m: int) -> None:
    x, weight = (t.detach() for t in _tensors(5, 3, 7, 8, 12))
    bias = torch.randn(7, dtype=torch.float64)
    found = winograd.convolve_transformed(x, winograd.transformed(weight, m), bias)
    torch.testing.assert_close(found, torch.conv2d(x, weight, bias, padding=1), rtol=1e-12, atol=1e-12)


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).abs().max() / exact.abs().max())


def test_float32_is_as_exact_as_torch() -> None:
    x, weight = _tensors(18, 128, 130, 8, 12)
    upstream = torch.randn(18, 130, 8, 12, dtype=torch.float64)

    def results(convolve: Any, dtype: torch.dtype) -> list[Tensor]:
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, weight)]
        y = convolve(*inputs)
        return [t.detach().double() for t in (y, *torch.autograd.grad(y, inputs, upstream.to(dtype)))]

    def theirs(x: Tensor, weight: Tensor) -> Tensor:
        return torch.conv2d(x, weight, padding=1)

    def deployed(x: Tensor, weight: Tensor) -> Tensor:
        return winograd.convolve_transformed(x, winograd.transformed(weight, 4))

    exact, found = results(theirs, torch.float64), results(theirs, torch.float32)
    errors = [_error(*pair) for pair in zip(found, exact, strict=True)]
    for ours, right, error in zip(results(winograd.convolve, torch.float32), exact, errors, strict=True):
        assert _error(ours, right) < 4 * max(error, 2**-23)
    with torch.no_grad():
        assert _error(deployed(x.float(), weight.float()).double(), exact[0]) < 4 * max(errors[0], 2**-23)


def test_operators_are_well_formed() -> None:
    x, weight = _tensors(2, 3, 5, 4, 6)
    torch.library.opcheck(winograd.convolve, (x, weight))
    torch.library.opcheck(
        winograd.gradients, (torch.randn(2, 5, 4, 6, dtype=torch.float64), x.detach(), weight.detach())
    )


@pytest.mark.parametrize(
    ("change", "size", "options"),
    [
        ("a float64 network", 8, {"dtype": torch.float64}),
        ("an odd side", 9, {}),
        ("a small image", 4, {}),
        ("few channels", 8, {"in_channels": 64}),
        ("a stride", 8, {"stride": 2}),
        ("no padding", 8, {"padding": 0}),
        ("padding by name", 8, {"padding": "same"}),
        ("a dilation", 8, {"dilation": 2}),
        ("groups", 8, {"groups": 2}),
        ("another window", 8, {"kernel_size": 1}),
        ("a bias", 8, {"bias": True}),
        ("another border", 8, {"padding_mode": "circular"}),
    ],
)
def test_other_convolutions_are_left_to_torch(
    change: str, size: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Tensor:
        raise AssertionError(f"Winograd was taken for {change}")

    monkeypatch.setattr(winograd, "convolve", refuse)
    settings: dict[str, Any] = {"in_channels": 128, "out_channels": 130, "kernel_size": 3, "padding": 1, "bias": False}
    conv = Conv2d(**settings | options).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(17, conv.in_channels, size, size, dtype=conv.weight.dtype).contiguous(memory_format=LAST)
    torch.testing.assert_close(conv(x[None])[0], nn.Conv2d.forward(conv, x))


def test_few_images_are_left_to_torch() -> None:
    conv, _, spikes = _layer()
    many = spikes.flatten(0, 1)
    assert winograd.applies(many, conv.weight, conv)
    assert not winograd.applies(many[:15], conv.weight, conv)
    assert winograd.applies(many[:1], conv.weight, conv, images=1)


def test_autocast_is_left_to_torch() -> None:
    conv, _, spikes = _layer()
    with torch.autocast("cpu", torch.bfloat16):
        assert not winograd.applies(spikes.flatten(0, 1), conv.weight, conv)
        assert conv(spikes).dtype == torch.bfloat16


@pytest.mark.parametrize("worthwhile", [False, True])
def test_cpus_with_fast_multiplication_leave_it_to_torch(worthwhile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "WORTHWHILE", worthwhile)
    conv, _, spikes = _layer()
    assert winograd.applies(spikes.flatten(0, 1), conv.weight, conv) is worthwhile


def _layer() -> tuple[Conv2d, Soma, Tensor]:
    torch.manual_seed(0)
    conv = Conv2d(128, 130, 3, padding=1, bias=False).to(memory_format=LAST)  # type: ignore[call-overload]
    spikes = (torch.rand(3, 6, 8, 10, 128) < 0.3).float().permute(0, 1, 4, 2, 3)
    kernels.mark_spikes(spikes.requires_grad_())
    return conv, Soma(130), spikes


def test_a_layer_takes_it_in_every_memory_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, soma, spikes = _layer()
    calls = []
    original = winograd._convolve
    monkeypatch.setattr(winograd, "_convolve", lambda *tensors: calls.append(1) or original(*tensors))
    results = []
    for memory in ("speed", "packed", "recompute"):
        conv.memory = memory
        calls.clear()
        out = soma(conv(spikes))
        results.append((out, *torch.autograd.grad(out, (spikes, conv.weight), torch.ones_like(out))))
        assert len(calls) == (3 if memory == "recompute" else 2)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("worthwhile", [False, True])
def test_a_layer_compiles_as_one_graph(worthwhile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "WORTHWHILE", worthwhile)
    conv, _, spikes = _layer()
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(spikes), conv(spikes))


def test_deployed_convolution_takes_it_and_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, _, spikes = _layer()
    bias = torch.randn(130)
    frozen = convolution(conv.weight.detach().clone(), bias, padding=(1, 1), stride=(1, 1), dilation=(1, 1))
    calls = []
    original = winograd.transformed
    monkeypatch.setattr(winograd, "transformed", lambda *given: calls.append(1) or original(*given))
    x = spikes[0].detach()
    narrow = x[..., :8].contiguous(memory_format=LAST)  # for larger tiles
    for images in (x, x[:1], narrow):
        exact = torch.conv2d(images.double(), frozen.weight.double(), bias.double(), padding=1)
        theirs = torch.conv2d(images, frozen.weight, bias, padding=1)
        assert _error(frozen(images), exact) < 4 * max(_error(theirs, exact), 2**-23)
    assert len(calls) == 2
    with torch.no_grad():
        frozen.weight.mul_(2)
    assert torch.equal(frozen(x), winograd.convolve_transformed(x, original(2 * conv.weight.detach(), 2), bias))
    assert len(calls) == 3
