"""The convolution of a deployed network. Its weights never change, so a CPU can keep them in its preferred order."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import kernels
from rheobase.deploy.pairs import FRACTION_BITS

Pair = int | tuple[int, ...]


class FrozenConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` for inference. On a CPU, weights are prepared once (see `kernels.PreparedWeight`).

    The weights of a quantised network are integers, or multiples of 2**-FRACTION_BITS. They come as float64, which
    oneDNN does not support. If all sums are small enough, float32 is just as exact and many times faster.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prepared = kernels.PreparedWeight()

    def forward(self, x: Tensor) -> Tensor:
        kinds = {(t.device.type, t.dtype) for t in (x, self.weight)}
        if x.requires_grad or not kernels.CAN_PREPARE:
            return super().forward(x)
        weight, window = self.weight.detach(), kernels.Window(self.stride, self.padding, self.dilation, self.groups)
        if kinds == {("cpu", torch.float64)} and self._small_integers(x):
            y = self._prepared.convolve(x.float(), weight, None, window).double()
            return y if self.bias is None else y.add_(self.bias[:, None, None])
        if kinds != {("cpu", torch.float32)}:
            return super().forward(x)
        return self._prepared.convolve(x, weight, self.bias, window)

    def _small_integers(self, x: Tensor) -> bool:
        """Return whether float32 holds every sum of the convolution exactly."""
        weight = self.weight.detach()
        largest_sum = self._prepared.once("largest sum", weight, lambda: _largest_sum(weight))
        return largest_sum * max(abs(float(end)) for end in x.aminmax()) < 2**24 and torch.equal(x, x.round())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FrozenConv2d":
        self._prepared.clear()
        return super()._apply(fn, recurse)


def _largest_sum(weight: Tensor) -> float:
    """Return the largest possible output for inputs up to 1, in units of the weights. Infinite if they have no unit."""
    for steps in (1, 2**FRACTION_BITS):
        if torch.equal(weight * steps, (weight * steps).round()):
            return float(weight.abs().sum((1, 2, 3)).max()) * steps
    return inf


def convolution(
    weight: Tensor, bias: Tensor | None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1
) -> FrozenConv2d:
    """Return a convolution that uses these parameters without copying them."""
    options: Any = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "device": "meta"}
    kernel: Any = tuple(weight.shape[2:])
    conv = FrozenConv2d(weight.shape[1] * groups, len(weight), kernel, bias=bias is not None, **options)
    conv.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        conv.bias = nn.Parameter(bias, requires_grad=False)
    return conv
