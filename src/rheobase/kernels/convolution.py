"""Convolutions of images [N, C, H, W]: Winograd's method where it is faster, torch's everywhere else."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels import winograd
from rheobase.kernels.winograd import Window

CAN_PREPARE = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_reorder_convolution_weight", "_convolution_pointwise")
)
"""Whether weights can be kept in the order that convolutions on a CPU use."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """Compute `torch.conv2d`, faster."""
    if bias is None and winograd.applies(x, weight, window):
        return winograd.convolve(x, weight)
    return torch.conv2d(x, weight, bias, *window)  # type: ignore[arg-type]


def gradients(grad: Tensor, x: Tensor, weight: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight for a convolution without bias, equal to those of autograd."""
    if winograd.applies(x, weight, window):
        return winograd.gradients(grad, x, weight)
    how = (window.stride, window.padding, window.dilation, False, [0, 0], window.groups)
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [True, True, False])
    return grad_x, grad_weight


class PreparedWeight:
    """A weight in the form that a CPU convolves with, kept until the weight changes.

    `torch.conv2d` brings float32 weights into oneDNN's order at every call. Here it is done once, and so is the
    transformation for Winograd's method. The operators are those that torch's compiler uses for frozen networks.
    `CAN_PREPARE` says whether they exist.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        """Convolve float32 images on a CPU, without gradients.

        A float64 weight is rounded to float32 and assumed to hold integers. Winograd's method is not used for it,
        because it would not be exact.
        """
        if winograd.applies(x, weight, window, images=1):
            m = winograd.tile(x)
            matrices = self.once(f"transformed for {m}", weight, lambda: winograd.transformed(weight, m))
            return winograd.convolve_transformed(x, matrices, bias)
        if len(weight) == 1:  # with a single output, oneDNN confuses two orders of the weight, and sums are wrong
            return torch.conv2d(x, weight.float(), bias, window.stride, window.padding, window.dilation, window.groups)
        how = [list(window.padding), list(window.stride), list(window.dilation), window.groups]

        def reordered() -> Tensor:
            return torch.ops.mkldnn._reorder_convolution_weight(weight.float(), *how, list(x.shape))

        convolve = torch.ops.mkldnn._convolution_pointwise.default
        return convolve(x, self.once("reordered", weight, reordered), bias, *how, "none", [], "")

    def once(self, what: str, weight: Tensor, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which is called again only if the weight or the number of threads changes."""
        version = weight.data_ptr(), weight._version, torch.get_num_threads()
        if what not in self._kept or self._kept[what][0] != version:
            self._kept[what] = version, make()
        return self._kept[what][1]

    def clear(self) -> None:
        """Forget everything. Call this when the weight is replaced, because the new one may have the same address."""
        self._kept.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": {}}  # weights in oneDNN's order can be neither copied nor saved
