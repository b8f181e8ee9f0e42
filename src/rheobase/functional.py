"""The law: the equations of STBP-tdBN (Zheng et al., AAAI 2021) on plain tensors.

Every faster implementation must equal these functions, in outputs and in all gradients; autograd does the
differentiation. Half precision is computed in float32 and returned in half precision.

Shapes: T timesteps (always dimension 0), N batch, C channels (always dimension 2), K classes.
"""

from collections.abc import Callable, Collection, Sequence
from math import pi
from typing import Any

import torch
from torch import Tensor

Moments = tuple[Tensor, Tensor]  # mean and biased variance, each [n, C] for n branches


# Surrogates: the derivative of a spike by u, at the distance d = u - v_th. All have area 1 and height 1/width, so a
# width is that of the rectangle of this area and height. `kernels.cpu` and `kernels.triton_kernels` have the same ones.


def rectangle(d: Tensor, width: float) -> Tensor:
    """1/width where |d| < width/2 (Eq. 16); the window is open, so both edges have none."""
    return (d.abs() < width / 2).to(d.dtype) / width


def triangle(d: Tensor, width: float) -> Tensor:
    """From 1/width in the middle to 0 at |d| = width."""
    return (1 - d.abs() / width).clamp(min=0) / width


def sigmoid(d: Tensor, width: float) -> Tensor:
    """The derivative of the logistic function of 4 d / width."""
    e = torch.exp(-4 * d.abs() / width)
    return 4 * e / (1 + e).square() / width


def atan(d: Tensor, width: float) -> Tensor:
    """The derivative of arctan(pi d / width) / pi."""
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
    """1 where u > v_th (Eq. 3); backward ds/du is the `surrogate` of u - v_th (Eq. 16 for a rectangle)."""
    check_choice("surrogate", surrogate, SURROGATES)
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
    """Spikes [T, ...] of iterative leaky integrate-and-fire neurons with input x [T, ...] (Eq. 1-3).

    The decay is one for all, or one per channel [C] of x [T, N, C, ...]; 1 is integrate-and-fire, without a leak. A
    spike resets u to 0 (hard), or lowers it by v_th (soft). The reset takes part in the gradient, for a hard one
    du[t+1]/ds[t] = -decay * u[t] (Eq. 14-15), unless `reset_gradient` is false: then s is a constant in it. `initial`
    is the potential that the first step decays. `spikes_of` takes the place of `spike`, for another surrogate.
    """
    check_choice("reset", reset, RESETS)
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
    """One step of `lif`, for running without gradients: input x and potential v after reset -> (s, v).

    Tensors among decay and v_th are factors of x.
    """
    check_choice("reset", reset, RESETS)
    u = decay * v + _at_least_float32(x)
    fired = u > v_th
    return fired.to(x.dtype), u.masked_fill(fired, 0) if reset == "hard" else torch.where(fired, u - v_th, u)


def qcfs(x: Tensor, threshold: Tensor, levels: int) -> Tensor:
    """The quantised clip-floor-shift activation (Bu et al. 2022): ReLU, cut at `threshold` and in steps of a level.

    threshold * clip(floor(x * levels / threshold + 1/2) / levels, 0, 1). In the gradient the floor is the identity, so
    that of x passes between 0 and the threshold, and the threshold learns from what was cut or rounded.
    """
    share = (_at_least_float32(x) / threshold).clamp(0, 1)
    steps = torch.floor(share.detach() * levels + 0.5) / levels
    return ((share + (steps - share.detach())) * threshold).to(x.dtype)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel of x [T, N, C, ...], over T, N and space together (Eq. 7-8)."""
    if x.ndim < 3:
        raise ValueError(f"moments: expected [T, N, C, ...], got {list(x.shape)}")
    if x.stride(0) == 0:  # a static input repeats one step: its moments are that step's
        x = x[:1]
    check_count(x)
    x = _at_least_float32(x).movedim(2, 0).flatten(1)
    mean = x.mean(1)
    return mean, (x - mean[:, None]).square().mean(1)


_batch_moments = moments  # `fire` has an argument of that name


def tdbn(
    x: Tensor, weight: Tensor, bias: Tensor, *, alpha: float, v_th: float, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """Threshold-dependent batch normalisation of x [T, N, C, ...] (Eq. 5-6)."""
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
    """n branches, each through tdBN with alpha = 1/sqrt(n), summed, through LIF: -> (spikes, moments).

    `weights` and `biases` hold one [C] per branch. Moments are (mean [n, C], biased variance [n, C]): given ones are
    constants (inference); otherwise those of the batch are used, differentiated through, and returned detached.
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
    """Mean over time: logits [T, N, K] -> [N, K] (Eq. 11)."""
    return _at_least_float32(logits).mean(0).to(logits.dtype)


def check_sequence(x: Tensor, timesteps: int | None) -> int:
    """The number of steps of a network's input; a ValueError unless that is clear.

    Images [N, C, H, W] need `timesteps`; a sequence [T, N, C, H, W] has its own.
    """
    shape = list(x.shape)
    if x.ndim not in (4, 5):
        raise ValueError(f"expected images [N, C, H, W] or a sequence [T, N, C, H, W], got {shape}")
    if 0 in shape:
        raise ValueError(f"expected at least one element in every dimension, got {shape}")
    if x.ndim == 5 and timesteps is not None and timesteps != shape[0]:
        raise ValueError(f"timesteps={timesteps} does not match the sequence, which has {shape[0]} steps")
    if x.ndim == 4 and (timesteps is None or timesteps < 1):
        raise ValueError(f"images need timesteps of at least 1, got {timesteps}; call network(x, timesteps=4)")
    return shape[0] if timesteps is None else timesteps


def check_branches(
    xs: Sequence[Tensor],
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    moments: Moments | None,
) -> None:
    """Raise a ValueError unless all branches agree in number, shape and kind."""
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
            raise ValueError(f"fire: expected branches of one type, got {[str(x.dtype) for x in xs]}")
        if x.ndim < 3 or x.shape != shape:
            raise ValueError(f"fire: expected branches of one shape [T, N, C, ...], got {[list(x.shape) for x in xs]}")
    if 0 in shape:
        raise ValueError(f"fire: expected at least one element in every dimension, got {list(shape)}")
    channels = len(weights[0])
    if shape[2] != channels:
        raise ValueError(f"fire: expected {channels} channels in dimension 2, got {list(shape)}")


def check_choice(what: str, name: str, choices: Collection[str]) -> None:
    """Raise a ValueError unless `name` is one of the choices for a setting of the neuron."""
    if name not in choices:
        raise ValueError(f"unknown {what} '{name}'; choose one of {', '.join(choices)}")


def decays(decay: Tensor, channels: int) -> Tensor:
    """A decay for all neurons, or one per channel, as [C]; a ValueError if it is neither."""
    if decay.numel() != 1 and decay.shape != (channels,):
        raise ValueError(f"expected one decay, or one for each of {channels} channels, got {list(decay.shape)}")
    return decay.reshape(-1).expand(channels)


def decay_factor(decay: float | Tensor, x: Tensor) -> float | Tensor:
    """The decay as a factor of one step of x [T, N, C, ...]."""
    if not isinstance(decay, Tensor):
        return decay
    if decay.numel() == 1:
        return decay.reshape(())
    return decays(decay, x.shape[2] if x.ndim > 2 else 1).view(-1, *[1] * (x.ndim - 3))


def check_count(x: Tensor) -> None:
    """Raise a ValueError if x [T, N, C, ...] has a single value per channel: its variance says nothing."""
    if x.numel() == x.shape[2]:
        raise ValueError(f"expected more than one value per channel, got {list(x.shape)}; use a larger batch")


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
