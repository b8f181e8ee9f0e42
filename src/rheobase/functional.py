"""The law: the equations of STBP-tdBN (Zheng et al., AAAI 2021) on plain tensors.

Every faster implementation must match these functions in outputs and in all gradients. Autograd differentiates them.
Half-precision inputs are computed in float32, and the result is returned in half precision.

Shapes: T timesteps (always dimension 0), N batch, C channels (always dimension 2), K classes.
"""

from collections.abc import Callable, Collection, Sequence
from math import pi
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "atan",
    "fire",
    "lif",
    "lif_step",
    "moments",
    "qcfs",
    "readout",
    "rectangle",
    "sigmoid",
    "spike",
    "tdbn",
    "triangle",
]

Moments = tuple[Tensor, Tensor]  # mean and biased variance, each [n, C] for n branches


# Surrogates: the derivative of a spike with respect to u, at the distance d = u - v_th. All have area 1 and height
# 1/width; a rectangle of this height is `width` wide. `kernels.cpu` and `kernels.triton_neurons` define the same ones.


def rectangle(d: Tensor, width: float) -> Tensor:
    """Return 1/width where |d| < width/2, else 0 (Eq. 16). The gradient is 0 at both edges."""
    return (d.abs() < width / 2).to(d.dtype) / width


def triangle(d: Tensor, width: float) -> Tensor:
    """Return a triangle: 1/width at d = 0, falling to 0 at |d| = width."""
    return (1 - d.abs() / width).clamp(min=0) / width


def sigmoid(d: Tensor, width: float) -> Tensor:
    """Return the derivative of the logistic function of 4 d / width."""
    e = torch.exp(-4 * d.abs() / width)
    return 4 * e / (1 + e).square() / width


def atan(d: Tensor, width: float) -> Tensor:
    """Return the derivative of arctan(pi d / width) / pi."""
    return 1 / (1 + (pi * d / width).square()) / width


Surrogate = Callable[[Tensor, float], Tensor]
SURROGATES: dict[str, Surrogate] = {"rectangle": rectangle, "triangle": triangle, "sigmoid": sigmoid, "atan": atan}
RESETS = ("hard", "soft")


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, v_th: float, width: float, surrogate: Surrogate) -> Tensor:
        ctx.save_for_backward(u)
        ctx.v_th, ctx.width, ctx.surrogate = v_th, width, surrogate
        return (u > v_th).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (u,) = ctx.saved_tensors
        return grads[0] * ctx.surrogate(u - ctx.v_th, ctx.width), None, None, None


def spike(u: Tensor, *, v_th: float, width: float, surrogate: str = "rectangle") -> Tensor:
    """Return 1 where u > v_th, else 0 (Eq. 3). Backward, ds/du is `surrogate` at u - v_th (rectangle: Eq. 16)."""
    check_choice("surrogate", surrogate, SURROGATES)
    if not width > 0:
        raise ValueError(f"spike: expected width > 0, got {width}")
    return _Spike.apply(u, v_th, width, SURROGATES[surrogate])


def lif(
    x: Tensor,
    *,
    decay: float | Tensor,
    v_th: float,
    width: float,
    surrogate: str = "rectangle",
    reset: str = "hard",
    reset_gradient: bool = True,
    initial: float | Tensor = 0.0,
    spikes_of: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the spikes [T, ...] of iterative leaky integrate-and-fire neurons with input x [T, ...] (Eq. 1-3).

    `decay` is one number, or one per channel [C] of x [T, N, C, ...]. A decay of 1 means no leak: integrate-and-fire.
    A spike resets u to 0 (hard) or lowers it by v_th (soft). The gradient flows through the reset: for a hard reset
    du[t+1]/ds[t] = -decay * u[t] (Eq. 14-15). If `reset_gradient` is false, s is a constant in the reset. `initial` is
    the potential before the first step. `spikes_of` replaces `spike`, for another surrogate.
    """
    check_choice("reset", reset, RESETS)
    if not isinstance(decay, Tensor) and not 0 <= decay <= 1:
        raise ValueError(f"lif: expected a decay from 0 to 1, got {decay}")
    inputs = _at_least_float32(x)
    decay = decay_factor(decay, x)
    v = torch.zeros_like(inputs[0]) + initial  # the potential after reset
    spikes = []
    for x_t in inputs:
        u = decay * v + x_t
        s = spike(u, v_th=v_th, width=width, surrogate=surrogate) if spikes_of is None else spikes_of(u)
        by = s if reset_gradient else s.detach()
        v = u * (1 - by) if reset == "hard" else u - v_th * by
        spikes.append(s)
    return torch.stack(spikes).to(x.dtype)


def lif_step(
    x: Tensor, v: Tensor, *, decay: float | Tensor, v_th: float | Tensor, reset: str = "hard"
) -> tuple[Tensor, Tensor]:
    """Run one timestep of `lif` without gradients: input x and potential v after reset -> (s, v).

    If decay or v_th are tensors, they must broadcast with x.
    """
    check_choice("reset", reset, RESETS)
    u = decay * v + _at_least_float32(x)
    fired = u > v_th
    return fired.to(x.dtype), u.masked_fill(fired, 0) if reset == "hard" else torch.where(fired, u - v_th, u)


def qcfs(x: Tensor, threshold: Tensor, levels: int) -> Tensor:
    """Apply quantised clip-floor-shift (Bu et al. 2022): a ReLU that is cut at `threshold` and rounded to `levels`.

    It computes threshold * clip(floor(x * levels / threshold + 1/2) / levels, 0, 1). The gradient treats the floor as
    the identity: x gets a gradient between 0 and the threshold, and the threshold learns from clipping and rounding.
    """
    share = (_at_least_float32(x) / threshold).clamp(0, 1)
    steps = torch.floor(share.detach() * levels + 0.5) / levels
    return ((share + (steps - share.detach())) * threshold).to(x.dtype)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance per channel of x [T, N, C, ...], over T, N and space together (Eq. 7-8)."""
    if x.ndim < 3:
        raise ValueError(f"moments: expected [T, N, C, ...], got {list(x.shape)}")
    if x.stride(0) == 0:  # a static input repeats one step, so one step has the same moments
        x = x[:1]
    check_count(x)
    x = _at_least_float32(x).movedim(2, 0).flatten(1)
    mean = x.mean(1)
    return mean, (x - mean[:, None]).square().mean(1)


_batch_moments = moments  # `fire` has an argument with the same name


def tdbn(
    x: Tensor, weight: Tensor, bias: Tensor, *, alpha: float, v_th: float, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """Apply threshold-dependent batch normalisation to x [T, N, C, ...] (Eq. 5-6)."""
    mean, var, weight, bias = (p.view(-1, *[1] * (x.ndim - 3)) for p in (mean, var, weight, bias))
    normalised = alpha * v_th * (_at_least_float32(x) - mean) / torch.sqrt(var + eps)
    return (weight * normalised + bias).to(x.dtype)


def fire(
    xs: Sequence[Tensor],
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    *,
    decay: float | Tensor,
    v_th: float,
    width: float,
    eps: float,
    surrogate: str = "rectangle",
    reset: str = "hard",
    reset_gradient: bool = True,
    moments: Moments | None = None,
) -> tuple[Tensor, Moments]:
    """Normalise n branches by tdBN with alpha = 1/sqrt(n), sum them and run LIF neurons: -> (spikes, moments).

    `weights` and `biases` hold one [C] per branch. Moments are (mean [n, C], biased variance [n, C]). If given, they
    are constants (inference). Otherwise the moments of the batch are used, with gradients, and returned detached.
    """
    check_branches(xs, weights, biases, moments)
    inputs = [_at_least_float32(x) for x in xs]
    if moments is None:
        means, variances = zip(*map(_batch_moments, inputs), strict=True)
    else:
        means, variances = moments[0].detach().unbind(), moments[1].detach().unbind()
    alpha = len(xs) ** -0.5
    current = torch.zeros_like(inputs[0])
    for x, weight, bias, mean, var in zip(inputs, weights, biases, means, variances, strict=True):
        current = current + tdbn(x, weight, bias, alpha=alpha, v_th=v_th, mean=mean, var=var, eps=eps)
    neuron: dict[str, Any] = {"surrogate": surrogate, "reset": reset, "reset_gradient": reset_gradient}
    spikes = lif(current, decay=decay, v_th=v_th, width=width, **neuron).to(xs[0].dtype)
    return spikes, (torch.stack(means).detach(), torch.stack(variances).detach())


def readout(logits: Tensor) -> Tensor:
    """Average over time: logits [T, N, K] -> [N, K] (Eq. 11)."""
    return _at_least_float32(logits).mean(0).to(logits.dtype)


def check_sequence(x: Tensor, timesteps: int | None) -> int:
    """Return the number of timesteps of a network's input, or raise a ValueError if it is unclear.

    Images [N, C, H, W] need `timesteps`. A sequence [T, N, C, H, W] has its own.
    """
    shape = list(x.shape)
    if x.ndim not in (4, 5):
        raise ValueError(f"expected images [N, C, H, W] or a sequence [T, N, C, H, W], got {shape}")
    if 0 in shape:
        raise ValueError(f"expected at least one element in every dimension, got {shape}")
    if x.ndim == 5:
        if timesteps is not None and timesteps != shape[0]:
            raise ValueError(f"timesteps={timesteps!r} does not match the sequence, which has {shape[0]} timesteps")
        return shape[0]
    if not isinstance(timesteps, Integral) or timesteps < 1:
        raise ValueError(f"images need timesteps of at least 1, got {timesteps!r}; call network(x, timesteps=4)")
    return timesteps


def check_branches(
    xs: Sequence[Tensor],
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    moments: Moments | None,
) -> None:
    """Raise a ValueError unless all branches agree in number, shape and dtype."""
    n = len(xs)
    if n == 0:
        raise ValueError("fire: expected at least one branch, got none")
    if {len(p) for p in (weights, biases, *(moments or ()))} != {n}:
        given = "" if moments is None else f", moments of {len(moments[0])} and {len(moments[1])} branches"
        raise ValueError(f"fire: got {n} branches, but {len(weights)} weights, {len(biases)} biases{given}")
    shape = xs[0].shape
    for x in xs:
        if not x.is_floating_point():
            raise ValueError(f"fire: expected floating-point input, got {x.dtype}")
        if x.dtype != xs[0].dtype:
            raise ValueError(f"fire: expected branches of one dtype, got {[str(x.dtype) for x in xs]}")
        if x.ndim < 3 or x.shape != shape:
            raise ValueError(f"fire: expected branches of one shape [T, N, C, ...], got {[list(x.shape) for x in xs]}")
    if 0 in shape:
        raise ValueError(f"fire: expected at least one element in every dimension, got {list(shape)}")
    channels = len(weights[0])
    if shape[2] != channels:
        raise ValueError(f"fire: expected {channels} channels in dimension 2, got {list(shape)}")


def check_choice(what: str, name: str, choices: Collection[str]) -> None:
    """Raise a ValueError unless `name` is one of the choices for the neuron's setting `what`."""
    if name not in choices:
        raise ValueError(f"unknown {what} '{name}'; choose one of {', '.join(choices)}")


def decays(decay: Tensor, channels: int) -> Tensor:
    """Return one decay, or one per channel, as [C]. Raise a ValueError if it is neither."""
    if decay.numel() != 1 and decay.shape != (channels,):
        raise ValueError(f"expected one decay, or one for each of {channels} channels, got {list(decay.shape)}")
    return decay.reshape(-1).expand(channels)


def decay_factor(decay: float | Tensor, x: Tensor) -> float | Tensor:
    """Return the decay in a shape that multiplies one step of x [T, N, C, ...]."""
    if not isinstance(decay, Tensor):
        return decay
    if decay.numel() == 1:
        return decay.reshape(())
    return decays(decay, x.shape[2] if x.ndim > 2 else 1).view(-1, *[1] * (x.ndim - 3))


def check_count(x: Tensor) -> None:
    """Raise a ValueError if x [T, N, C, ...] has a single value per channel: its variance is meaningless."""
    if x.numel() == x.shape[2]:
        raise ValueError(f"expected more than one value per channel, got {list(x.shape)}; use a larger batch")


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
