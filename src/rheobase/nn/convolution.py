"""Convolution of sequences, and what it keeps for the backward pass."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from rheobase import kernels


class Conv2d(nn.Conv2d):
    """`torch.nn.Conv2d` on a sequence [T, N, C, H, W]. An input that is the same at all timesteps is convolved once.

    With a `memory` mode other than "speed" (see `set_memory`), the soma that follows computes the convolution.
    """

    memory = "speed"
    path = ""  # in the network, for messages
    _warned = False

    def forward(self, x: Any) -> Any:
        """Return the output of the convolution, or a `DeferredConv` that the next soma computes."""
        x = carried_out(x)
        if kernels.is_static(x):
            return hold(self.convolve(x[:1]), len(x))
        if self.memory == "speed" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.convolve(x)  # a compiler decides what to keep
        if not x.requires_grad and not kernels.are_marked(x):  # the network's input is in memory anyway
            return self.convolve(x)
        if reason := self._reason_to_keep_all():
            self.warn(f"runs in mode 'speed', because it has {reason}")
            return self.convolve(x)
        return DeferredConv(self, x)

    def _reason_to_keep_all(self) -> str:
        """Return why a soma cannot compute this convolution; empty if it can."""
        if type(self).convolve is not Conv2d.convolve:
            return "its own convolve method"
        return "a bias" if self.bias is not None else "padding other than a number of zeros" if self._pads else ""

    def convolve(self, x: Tensor) -> Tensor:
        """Compute the convolution, as in mode "speed"."""
        flat = x.flatten(0, 1)
        if self.padding_mode == "zeros":
            y = kernels.convolve(flat, self.weight, self.bias, self.window)
        else:
            y = super().forward(flat)
        return y.unflatten(0, x.shape[:2])

    @property
    def _pads(self) -> bool:
        """Whether the padding is a word such as "same", or not zeros."""
        return isinstance(self.padding, str) or self.padding_mode != "zeros"

    @property
    def window(self) -> kernels.Window:
        """Stride, padding, dilation and groups."""
        return kernels.Window(self.stride, self.padding, self.dilation, self.groups)

    def warn(self, what: str) -> None:
        """Warn once that this convolution saves less memory than its mode promises, and why."""
        if not self._warned:
            self._warned = True
            name = f"'{self.path}' " if self.path else ""
            warnings.warn(f"memory '{self.memory}': the convolution {name}{self} {what}", stacklevel=2)


class DeferredConv:
    """A convolution in memory mode "packed" or "recompute" that the next soma will compute.

    Any other operation computes the convolution first, as in mode "speed", and then uses that tensor. The exception is
    a `torch.autograd.Function`, which needs `.carried_out()` as its argument.
    """

    def __init__(self, conv: Conv2d, x: Tensor) -> None:
        self._conv, self._x, self._versions = conv, x, (x._version, conv.weight._version)
        device = x.device.type
        self._autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        self._output: Tensor | None = None

    def carried_out(self) -> Tensor:
        """Compute the output and return it as a tensor."""
        if self._output is None:
            self._check_unchanged()
            enabled, dtype = self._autocast
            with torch.enable_grad(), torch.autocast(self._x.device.type, dtype, enabled):
                self._output = self._conv.convolve(self._x)
        return self._output

    def branch(self) -> Tensor | kernels.Branch:
        """Return what the soma gets: the convolution to compute, or its output if that exists already."""
        if self._output is not None:
            return self._output
        self._check_unchanged()
        conv, x, dtype = self._conv, self._x, self._x.dtype
        binary = kernels.are_marked(x)
        if not binary:
            conv.warn(
                "keeps its whole input, because the input may not be spikes; only the output of a Soma, or a view of "
                "it, can be kept as bits"
            )
        enabled, autocast = self._autocast
        if enabled and dtype != torch.float64:  # autocast leaves doubles alone
            dtype = autocast
        synapse = kernels.Synapse(conv.window, keep_output=conv.memory == "packed")
        return kernels.Branch(x.to(dtype), binary, synapse, conv.weight.to(dtype))

    def _check_unchanged(self) -> None:
        if (self._x._version, self._conv.weight._version) != self._versions:
            raise ValueError(
                f"memory '{self._conv.memory}': the input or weight of {self._conv} was changed in place before its "
                "output was used; change a copy"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python probes objects for optional methods
            raise AttributeError(name)
        return getattr(self.carried_out(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(carried_out, (args, kwargs or {}))
        return function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"DeferredConv({self._conv}, input {list(self._x.shape)})"


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: DeferredConv, *args: Any) -> Any:
        return getattr(self.carried_out(), name)(*tree_map(carried_out, args))

    return operate


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow",
    "rpow", "matmul", "rmatmul", "neg", "pos", "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "setitem",
    "len", "iter", "contains", "bool", "int", "float", "array",
):  # fmt: skip
    setattr(DeferredConv, f"__{_name}__", _operator(f"__{_name}__"))


def carried_out(x: Any) -> Any:
    """Return the output of a deferred convolution, and anything else unchanged."""
    return x.carried_out() if isinstance(x, DeferredConv) else x


class _Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, timesteps: int) -> Tensor:
        return x.expand(timesteps, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        if grad.stride(0) == 0:  # the fused soma has summed over T already
            return grad[:1] * len(grad), None
        return grad.sum(0, keepdim=True), None


def hold(x: Tensor | DeferredConv, timesteps: int) -> Tensor:
    """Repeat one timestep x [1, N, ...] for all `timesteps` without copying it."""
    return _Hold.apply(carried_out(x), timesteps)
