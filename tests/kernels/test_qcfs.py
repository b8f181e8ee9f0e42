"""The activation of networks to be converted, by Triton, against the law."""

import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.kernels.qcfs import Qcfs

N, C, H, W = 3, 17, 5, 7  # more values than a program takes at once, and not a multiple


def both(x: Tensor, grad: Tensor, levels: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Output and gradients, by the kernels and by the law."""
    found = []
    for function in (Qcfs.apply, functional.qcfs):
        own = x.detach().requires_grad_()
        threshold = torch.tensor(1.7, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        threshold.requires_grad_()
        out = function(own, threshold, levels)
        out.backward(grad)
        assert own.grad is not None
        assert threshold.grad is not None
        found.append((out, own.grad, threshold.grad))
    return found


@pytest.mark.parametrize("levels", [1, 8])
@pytest.mark.parametrize("order", ["channels last", "channels first", "neither"])
def test_equals_the_law(levels: int, order: str, triton_device: str) -> None:
    x = 2 * torch.randn(1, N, C, H, W, dtype=torch.float64, device=triton_device)
    grad = torch.randn_like(x)
    if order == "channels last":
        x = x[0].contiguous(memory_format=torch.channels_last)[None]
    elif order == "neither":
        x = torch.stack([x, x], -1)[..., 0]
    for own, law in zip(*both(x, grad, levels), strict=True):
        torch.testing.assert_close(own, law, rtol=1e-12, atol=1e-12)


def test_edges(triton_device: str) -> None:
    """At 0 and at the threshold a gradient passes, in the middle between two levels a value is rounded up."""
    x = torch.tensor([[-1e-9, 0.0, 1.7 / 4, 1.7, 1.7 + 1e-9, -9.0, 9.0]], dtype=torch.float64, device=triton_device)
    for own, law in zip(*both(x, torch.ones_like(x), 2), strict=True):
        assert torch.equal(own, law)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype: torch.dtype, triton_device: str) -> None:
    """Kernels compute in float32, and so must the law: in bfloat16 it rounds some values to other levels."""
    x, grad = (torch.randn(1, N, C, H, W, device=triton_device).to(dtype) for _ in range(2))
    own, _ = both(x, grad, 8)
    _, law = both(x.float(), grad.float(), 8)
    assert own[0].dtype == own[1].dtype == dtype
    torch.testing.assert_close(own[0], law[0].to(dtype))
    assert torch.equal(own[1] != 0, law[1] != 0)
    torch.testing.assert_close(own[1], grad * (own[1] != 0), rtol=0, atol=0)  # the law multiplies, and divides again
    torch.testing.assert_close(own[2], law[2], rtol=1e-5, atol=1e-5)


def test_programs_take_turns(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the backward pass sums up several blocks if there are more blocks than programs."""
    monkeypatch.setattr("rheobase.kernels.triton_qcfs.PROGRAMS", 2)
    x, grad = (2 * torch.randn(7, N, C, H, W, dtype=torch.float64, device=triton_device) for _ in range(2))
    for own, law in zip(*both(x, grad, 8), strict=True):
        torch.testing.assert_close(own, law, rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_refused(triton_device: str) -> None:
    x = torch.rand(1, 3, device=triton_device, requires_grad=True)
    out = Qcfs.apply(x, torch.ones((), device=triton_device), 2)
    with pytest.raises(RuntimeError, match="know first derivatives only"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
