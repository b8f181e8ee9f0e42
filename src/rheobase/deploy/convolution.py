"""The convolution of a deployed network: its weights never change, so a CPU may keep them in its own order."""

from typing import Any

import torch
from torch import Tensor, nn

from rheobase.kernels import winograd

Pair = int | tuple[int, ...]


class FrozenConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` for inference.

    On CPUs, `torch.conv2d` brings float32 weights into oneDNN's order at every call; here it is done once. The
    operators are those that torch's own compiler uses for frozen networks.
    """

    _packed: tuple[tuple[int, int], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        kinds = {(t.device.type, t.dtype) for t in (x, self.weight)}
        if kinds != {("cpu", torch.float32)} or x.requires_grad or not _HAS_ONEDNN:
            return super().forward(x)
        if winograd.applies(x, self.weight, self):
            y = winograd.convolve(x, self.weight)
            return y if self.bias is None else y.add_(self.bias[:, None, None])
        window = [list(p) for p in (self.padding, self.stride, self.dilation)]
        version = self.weight.data_ptr(), self.weight._version
        if self._packed is None or self._packed[0] != version:
            order = torch.ops.mkldnn._reorder_convolution_weight(self.weight.data, *window, self.groups, list(x.shape))
            self._packed = version, order
        convolve = torch.ops.mkldnn._convolution_pointwise.default
        return convolve(x, self._packed[1], self.bias, *window, self.groups, "none", [], "")

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenConv2d":
        bias = None if self.bias is None else self.bias.detach().clone()
        window: Any = (self.stride, self.padding, self.dilation, self.groups)
        return convolution(self.weight.detach().clone(), bias, *window)


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
