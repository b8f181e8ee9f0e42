"""Somas of other libraries, to build exactly the same network from them.

Each is a factory soma(channels, branches=n) as `rheobase.models` expects it: one normalisation per incoming branch, a
sum, and neurons. So synapses, topology and the number of parameters are equal by construction.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.nn import Conv2d, Soma

DECAY, V_TH, WIDTH = 0.25, 0.5, 1.0


class Unavailable(Exception):
    """A contender cannot run here, for example because its package is not installed."""


class TorchConv2d(Conv2d):
    """torch's own convolution, as other libraries use it."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Conv2d.forward(self, x.flatten(0, 1)).unflatten(0, x.shape[:2])


def with_torch_convolutions(net: nn.Module) -> nn.Module:
    """Replace our convolutions by torch's."""
    for module in net.modules():
        if isinstance(module, Conv2d):
            module.__class__ = TorchConv2d
    return net


class LoopSoma(Soma):
    """The law itself: plain PyTorch, a loop over time, autograd."""

    def forward(self, *xs: Any) -> Tensor:
        spikes, (mean, var) = functional.fire(
            xs,
            self.weight,
            self.bias,
            decay=self.present_decay(),
            v_th=self.v_th,
            width=self.width,
            eps=self.eps,
            surrogate=self.surrogate,
            reset=self.reset,
            reset_gradient=self.reset_gradient,
        )
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
        return spikes


class ReluSoma(nn.Module):
    """Batch normalisation and ReLU instead of neurons, as in an ordinary network."""

    def __init__(self, channels: int, branches: int = 1) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(branches))

    def forward(self, *xs: Tensor) -> Tensor:
        rows = [norm(_as_images(x)) for norm, x in zip(self.norms, xs, strict=True)]
        return torch.relu_(_summed(rows)).view_as(xs[0])


class SpikingJellySoma(nn.Module):
    """SpikingJelly's tdBN and multi-step LIF node, set to the paper's equations.

    Its tdBN holds alpha * v_th as the initial value of its weight, which is the same function. A static input is
    normalised once, as its moments are those of one timestep, and passed to the node as an expanded view, which its
    kernels read without a copy.
    """

    def __init__(self, channels: int, branches: int = 1, *, surrogate: str) -> None:
        super().__init__()
        layer, neuron, surrogates = (_spikingjelly(part) for part in ("layer", "neuron", "surrogate"))
        alpha = branches**-0.5
        self.norms = nn.ModuleList(layer.ThresholdDependentBatchNorm2d(alpha, V_TH, channels) for _ in range(branches))
        self.neurons = neuron.LIFNode(
            tau=1 / (1 - DECAY),
            decay_input=False,
            v_threshold=V_TH,
            v_reset=0.0,
            surrogate_function=getattr(surrogates, surrogate)(alpha=1 / WIDTH),
            detach_reset=False,
            step_mode="m",
        )

    def forward(self, *xs: Tensor) -> Tensor:
        currents = []
        for norm, x in zip(self.norms, xs, strict=True):
            once = x[:1] if x.stride(0) == 0 else x
            currents.append(norm(_with_space(once)).view_as(once).expand_as(x))
        return self.neurons(_summed(currents))


class SnnTorchSoma(nn.Module):
    """snnTorch's Leaky with reset to zero, one timestep [1, N, C, ...] per call.

    The library has no normalisation over time, so each timestep is normalised separately.
    """

    def __init__(self, channels: int, branches: int = 1) -> None:
        super().__init__()
        snntorch = _module("snntorch")
        norms = [nn.BatchNorm2d(channels) for _ in range(branches)]
        for norm in norms:
            nn.init.constant_(norm.weight, V_TH * branches**-0.5)
        self.norms = nn.ModuleList(norms)
        self.neurons = snntorch.Leaky(beta=DECAY, threshold=V_TH, reset_mechanism="zero", init_hidden=True)

    def forward(self, *xs: Tensor) -> Tensor:
        rows = [norm(_as_images(x)) for norm, x in zip(self.norms, xs, strict=True)]
        return self.neurons(_summed(rows)).view_as(xs[0])


def reset_spikingjelly(net: nn.Module) -> None:
    """Clear the state of its neurons."""
    _spikingjelly("functional").reset_net(net)


def store_spikingjelly_in_bfloat16(net: nn.Module) -> None:
    """Keep its potentials in bfloat16, the only setting in which its Triton kernels take bfloat16 input."""
    precision = _spikingjelly("precision")
    precision.prepare_model_for_precision(
        net, "cuda", precision.PrecisionConfig(mode="bf16", neuron_storage="bf16", neuron_fwd="fp32", neuron_bwd="fp32")
    )


def reset_snntorch(net: nn.Module) -> None:
    """Clear the state of its neurons."""
    for module in net.modules():  # its own `utils.reset` does not find neurons inside blocks
        if isinstance(module, SnnTorchSoma):
            module.neurons.reset_mem()


def _spikingjelly(part: str) -> Any:
    return _module(f"spikingjelly.activation_based.{part}")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise Unavailable(f"the package {error.name} is not installed") from error


def _with_space(x: Tensor) -> Tensor:
    return x[..., None, None] if x.ndim == 3 else x


def _as_images(x: Tensor) -> Tensor:
    return _with_space(x).flatten(0, 1)


def _summed(xs: list[Tensor]) -> Tensor:
    return xs[0] if len(xs) == 1 else xs[0] + xs[1]
