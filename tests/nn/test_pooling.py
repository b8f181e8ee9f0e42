"""Pooling of sequences: equal to torch's, also where steps share memory."""

import pytest
import torch
from torch import nn

from rheobase.nn import AvgPool2d, hold

T, N, C, H, W = 3, 4, 5, 6, 8


@pytest.mark.parametrize(("size", "stride"), [(2, None), (3, None), (3, 2), (2, 3)])
def test_any_window_and_stride(size: int, stride: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = torch.empty_strided  # new memory, which holds anything
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **kind: allocate(*given, **kind).fill_(torch.nan))
    x = torch.randn(T, N, C, 7, H + 4, dtype=torch.float64, requires_grad=True)
    found = AvgPool2d(size, stride)(x)
    expected = nn.functional.avg_pool2d(x.flatten(0, 1), size, stride).unflatten(0, (T, N))
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    for own, other in zip(*(torch.autograd.grad(out, x, upstream) for out in (found, expected)), strict=True):
        torch.testing.assert_close(own, other)


def test_half_precision_is_rounded_once() -> None:
    x = torch.rand(T, N, C, H, W).bfloat16()
    assert torch.equal(AvgPool2d(3)(x), AvgPool2d(3)(x.float()).bfloat16())


def test_pooling_of_what_is_held_for_all_steps() -> None:
    x = torch.randn(1, 2, 3, 6, 5, dtype=torch.float64, requires_grad=True)
    pooled = AvgPool2d(2)(hold(x, 4))
    weights = torch.randn_like(pooled)
    (expected,) = torch.autograd.grad((nn.AvgPool2d(2)(x[0])[None] * weights).sum(), x)
    (found,) = torch.autograd.grad((pooled * weights).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_window_larger_than_the_image_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="too small"):
        AvgPool2d(4)(torch.zeros(2, 1, 3, 3, 5))


def test_pooling_of_steps_that_overlap_in_memory() -> None:
    frames = torch.randn(T + 2, N, C, H, W, dtype=torch.float64, requires_grad=True)
    grads = []
    for pool in (AvgPool2d(2), lambda x: nn.functional.avg_pool2d(x.flatten(0, 2), 2).unflatten(0, x.shape[:3])):
        out = pool(frames.unfold(0, T, 1).movedim(-1, 0).flatten(1, 2))
        (grad,) = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), frames)
        grads.append(grad)
    torch.testing.assert_close(*grads)
