"""The convolution of a deployed network: its weights never change, so a CPU may keep them in its own order."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.kernels import winograd

Pair = int | tuple[int, ...]


class FrozenConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` for inference.

    On CPUs, `torch.conv2d` brings float32 weights into oneDNN's order at every call; here that is done once, as the
    transformation of Winograd's method is. The operators are those that torch's own compiler uses for frozen networks.
    The integers of a quantised network come as float64, which oneDNN does not know: where all sums are small enough,
    float32 is as exact and many times as fast.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[str, tuple[Any, Any]] = {}

    def forward(self, x: Tensor) -> Tensor:
        kinds = {(t.device.type, t.dtype) for t in (x, self.weight)}
        if x.requires_grad or not _HAS_ONEDNN:
            return super().forward(x)
        if kinds == {("cpu", torch.float64)} and self._small_integers(x):
            y = self._convolve(x.float(), None).double()
            return y if self.bias is None else y.add_(self.bias[:, None, None])
        if kinds != {("cpu", torch.float32)}:
            return super().forward(x)
        if winograd.applies(x, self.weight, self, images=1):
            m = winograd.tile(x)
            matrices = self._once(f"transformed for {m}", lambda: winograd.transformed(self.weight.data, m))
            return winograd.convolve_transformed(x, matrices, self.bias)
        return self._convolve(x, self.bias)

    def _small_integers(self, x: Tensor) -> bool:
        """Whether every sum of the convolution is an integer that float32 holds exactly."""
        largest_sum = self._once("largest sum", lambda: _largest_sum(self.weight.data))
        return largest_sum * float(x.abs().max()) < 2**24 and torch.equal(x, x.round())

    def _convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        def reordered() -> Tensor:
            reorder = torch.ops.mkldnn._reorder_convolution_weight
            return reorder(self.weight.data.float(), *self._window(), self.groups, list(x.shape))

        convolve = torch.ops.mkldnn._convolution_pointwise.default
        return convolve(x, self._once("reordered", reordered), bias, *self._window(), self.groups, "none", [], "")

    def _once(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` makes of the weight, kept until that changes."""
        version = self.weight.data_ptr(), self.weight._version, torch.get_num_threads()
        if what not in self._kept or self._kept[what][0] != version:
            self._kept[what] = version, make()
        return self._kept[what][1]

    def _window(self) -> list[Any]:
        return [list(size) for size in (self.padding, self.stride, self.dilation)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FrozenConv2d":
        self._kept.clear()  # new weights may come to lie where the old ones were
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}}  # oneDNN's order can be neither copied nor saved


def _largest_sum(weight: Tensor) -> float:
    """The largest that an output can be for inputs of at most 1: infinite unless the weights are integers."""
    return float(weight.abs().sum((1, 2, 3)).max()) if torch.equal(weight, weight.round()) else inf


_HAS_ONEDNN = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_reorder_convolution_weight", "_convolution_pointwise")
)


def convolution(
    weight: Tensor, bias: Tensor | None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1
) -> FrozenConv2d:
    """A convolution with these very parameters."""
    options: Any = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "device": "meta"}
    kernel: Any = tuple(weight.shape[2:])
    conv = FrozenConv2d(weight.shape[1] * groups, len(weight), kernel, bias=bias is not None, **options)
    conv.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        conv.bias = nn.Parameter(bias, requires_grad=False)
    return conv
