"""Layers: a synapse (convolution, linear layer, pooling) feeds a soma (normalise, sum, integrate, fire).

Parameters and buffers live here, the maths in `functional` and `kernels`. Everything takes and returns whole sequences
[T, N, ...] and keeps no state between calls; synapses fold T into the batch.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.distributed import ProcessGroup

from rheobase import functional, kernels
from rheobase.kernels import winograd

MEMORY = {
    "speed": "keep spikes and synapse outputs for the backward pass as they are",
    "packed": "keep spikes as one bit each",
    "recompute": "keep nothing but spikes as one bit each, and compute the synapse outputs again",
}


class Conv2d(nn.Conv2d):
    """`torch.nn.Conv2d` on a sequence [T, N, C, H, W].

    `memory` other than "speed" (see `set_memory`) leaves the convolution of spikes to the soma it feeds.
    """

    memory = "speed"

    def forward(self, x: Tensor) -> Any:
        if self.memory != "speed" and torch.is_grad_enabled():
            return Pending(self, x)
        flat = x.flatten(0, 1)
        if self.bias is None and self.padding_mode == "zeros" and winograd.applies(flat, self.weight, self):
            y = winograd.convolve(flat, self.weight)
        else:
            y = super().forward(flat)
        return y.unflatten(0, x.shape[:2])


class Pending(NamedTuple):
    """A convolution of spikes that its soma will carry out, choosing what to keep for the backward pass."""

    synapse: Conv2d
    spikes: Tensor

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"no {name}: a convolution with memory '{self.synapse.memory}' must feed a Soma straight away; "
            "call set_memory for those parts of the network where it does"
        )

    def branch(self) -> kernels.Branch:
        conv = self.synapse
        if conv.bias is not None or not isinstance(conv.padding, tuple) or conv.padding_mode != "zeros":
            raise ValueError(f"memory '{conv.memory}' needs convolutions without bias, zero padding as numbers: {conv}")
        how = kernels.Convolution(list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups)
        device, dtype = self.spikes.device.type, self.spikes.dtype
        if dtype != torch.float64 and torch.is_autocast_enabled(device):  # which leaves doubles alone
            dtype = torch.get_autocast_dtype(device)
        return kernels.Branch(self.spikes.to(dtype), how, conv.weight.to(dtype), kernels.are_spikes(self.spikes))


def set_memory(module: nn.Module, memory: str) -> None:
    """Choose what every convolution in `module` keeps for the backward pass: a key of `MEMORY`.

    All of them must feed a soma. What is not spikes straight from a soma is kept whole.
    """
    if memory not in MEMORY:
        raise ValueError(f"unknown memory mode '{memory}'; choose one of {', '.join(MEMORY)}")
    for layer in module.modules():
        if isinstance(layer, Conv2d):
            layer.memory = memory


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


def hold(x: Tensor, timesteps: int) -> Tensor:
    """One step x [1, N, ...] for all `timesteps`, as the same memory."""
    return _Hold.apply(x, timesteps)


class _MeanOfWindows(torch.autograd.Function):
    """Non-overlapping square windows; several times faster than torch's pooling of channels_last tensors on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        # where steps share memory (held or overlapping ones), their gradients do not
        ctx.size, ctx.like = size, (x.shape, torch.empty_like(x, device="meta").stride(), x.dtype)
        windows = _windows(x, size)
        total = torch.zeros_like(windows[..., 0, :, 0], dtype=torch.promote_types(x.dtype, torch.float32))
        for i, j in product(range(size), repeat=2):
            total += windows[..., i, :, j]
        return (total / size**2).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        shape, stride, dtype = ctx.like
        grad = torch.empty_strided(shape, stride, dtype=dtype, device=grads[0].device)
        if any(length % ctx.size for length in shape[-2:]):
            grad.zero_()
        _windows(grad, ctx.size).copy_((grads[0] / ctx.size**2)[..., None, :, None])
        return grad, None


def _windows(x: Tensor, size: int) -> Tensor:
    """A view [..., H // size, size, W // size, size] of x [..., H, W]."""
    height, width = (length // size for length in x.shape[-2:])
    x = x[..., : height * size, : width * size]
    return x.unflatten(-1, (width, size)).unflatten(-3, (height, size))


class AvgPool2d(nn.AvgPool2d):
    """`torch.nn.AvgPool2d` on a sequence [T, N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        plain = self.padding == 0 and not self.ceil_mode and self.divisor_override is None
        size = self.kernel_size
        if plain and isinstance(size, int) and size == self.stride and size <= min(x.shape[-2:]):
            return _MeanOfWindows.apply(x, size)
        return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Soma(nn.Module):
    """The body of a layer of neurons: one tdBN per incoming branch, their sum, leaky integration and firing.

    Called as `soma(x1, x2, ...)` with one synapse output [T, N, C, ...] per branch; returns spikes of that shape.
    alpha = 1/sqrt(branches) follows from the number of branches, and tdBN and neuron share one v_th.
    Training uses the moments of the batch, evaluation the running ones. With a process `group` (see `distributed`) the
    batch is that of all its members.
    """

    running_mean: Tensor
    running_var: Tensor
    group: ProcessGroup | None = None

    def __init__(
        self,
        channels: int,
        branches: int = 1,
        *,
        decay: float = 0.25,
        v_th: float = 0.5,
        width: float = 1.0,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        if channels < 1 or branches < 1:
            raise ValueError(f"Soma: expected at least one channel and branch, got {channels} and {branches}")
        if not 0 <= decay <= 1:
            raise ValueError(f"Soma: expected decay between 0 and 1, got {decay}")
        if not (v_th > 0 and width > 0 and eps > 0 and 0 <= momentum <= 1):
            raise ValueError(
                f"Soma: expected v_th, width, eps > 0 and momentum in [0, 1], got {v_th}, {width}, {eps}, {momentum}"
            )
        self.channels, self.branches = channels, branches
        self.decay, self.v_th, self.width, self.eps, self.momentum = decay, v_th, width, eps, momentum
        self.weight = nn.Parameter(torch.ones(branches, channels))
        self.bias = nn.Parameter(torch.zeros(branches, channels))
        self.register_buffer("running_mean", torch.zeros(branches, channels))
        self.register_buffer("running_var", torch.ones(branches, channels))

    def forward(self, *xs: Tensor | Pending) -> Tensor:
        if len(xs) != self.branches:
            raise ValueError(f"Soma: expected {self.branches} branches, got {len(xs)}")
        neuron: dict[str, Any] = {
            "decay": self.decay,
            "v_th": self.v_th,
            "width": self.width,
            "eps": self.eps,
            "moments": None if self.training else (self.running_mean, self.running_var),
            "group": self.group,
        }
        tensors = [x for x in xs if isinstance(x, Tensor)]
        if len(tensors) == len(xs):
            spikes, (mean, var) = kernels.fire(tensors, self.weight, self.bias, **neuron)
        else:
            spikes, (mean, var) = kernels.fire_lean(
                [x.branch() if isinstance(x, Pending) else kernels.Branch(x, binary=kernels.are_spikes(x)) for x in xs],
                self.weight,
                self.bias,
                keep_outputs=any(isinstance(x, Pending) and x.synapse.memory == "packed" for x in xs),
                **neuron,
            )
        if self.training:  # in place, so that DDP and CUDA graphs keep seeing the same tensors
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            kernels.remember(spikes)
        return spikes

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and saved: a process group cannot."""
        return {name: value for name, value in self.__dict__.items() if name != "group"}

    # A checkpoint carries the neuron as a tensor, so that weights cannot be loaded into a different one.

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.decay, self.v_th, self.width, self.eps, self.branches], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        names = ("decay", "v_th", "width", "eps", "branches")
        saved, own = state.tolist(), self.get_extra_state().tolist()
        different = [f"{n} {s:g} (here {o:g})" for n, s, o in zip(names, saved, own, strict=True) if s != o]
        if different:
            raise ValueError(
                f"Soma: the checkpoint was trained with {', '.join(different)}; build the network with that"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, branches={self.branches}, decay={self.decay}, v_th={self.v_th}, width={self.width}, "
            f"eps={self.eps}, momentum={self.momentum}"
        )


@contextmanager
def watched(
    network: nn.Module, layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None], *, training: bool = False
) -> Iterator[None]:
    """`see` gets name and output of these layers, whenever one is called; `network` is in that mode meanwhile.

    Afterwards every part is in its own mode again.
    """
    handles = [
        layer.register_forward_hook(lambda _, __, out, name=name: see(name, out)) for name, layer in layers.items()
    ]
    modes = {module: module.training for module in network.modules()}
    network.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for handle in handles:
            handle.remove()


def as_sequence(
    x: Tensor,
    timesteps: int | None = None,
    *,
    channels: int | None = None,
    size: int | None = None,
    least_size: int = 1,
) -> Tensor:
    """The input of a network: images [N, C, H, W] held for `timesteps` steps, or a sequence [T, N, C, H, W] as it is.

    Every network begins with it, and `deploy.fold` knows it. A ValueError says what is wrong with an input: its
    number of `channels`, or the `size` of its images, which may have a least one instead.
    """
    if isinstance(x, fx.Proxy):  # a network that is being traced
        return x.tracer.create_proxy("call_function", as_sequence, (x, timesteps), {})
    steps, shape = functional.check_sequence(x, timesteps), list(x.shape)
    if not x.is_floating_point():
        raise ValueError(f"expected floating-point input, got {x.dtype}; convert it with .float()")
    if channels is not None and shape[-3] != channels:
        raise ValueError(f"expected {channels} channels, got {shape[-3]} in input {shape}")
    height, width = shape[-2:]
    if size is not None and (height, width) != (size, size):
        raise ValueError(f"expected images of {size} x {size}, got {height} x {width}")
    if min(height, width) < least_size:
        raise ValueError(f"an image of {height} x {width} is too small for the strides: expected at least {least_size}")
    return hold(x[None], steps) if x.ndim == 4 else x
