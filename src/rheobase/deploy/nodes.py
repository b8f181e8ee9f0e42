"""The nodes of a deployed network that torch does not have: scales and bare LIF neurons."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rheobase import functional, kernels


class Left(NamedTuple):
    """The scale and bias [C] that a synapse leaves to the neurons after it, which apply both in one pass."""

    scale: Tensor | None = None
    bias: Tensor | None = None

    def applied(self, x: Tensor) -> Tensor:
        """Apply both to a current [T, N, C, ...]."""
        x = x if self.scale is None else x * per_channel(self.scale, x[0])
        return x if self.bias is None else x + per_channel(self.bias, x[0])


NOTHING = Left()


class Scale(nn.Module):
    """The synapse of an identity shortcut: one weight per channel of x [N, C, ...], and perhaps a bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x * per_channel(self.weight, x)
        return y if self.bias is None else y + per_channel(self.bias, x)


class LIF(nn.Module):
    """Leaky integrate-and-fire neurons with one threshold per channel.

    `decay` and the `initial` potential before the first timestep are one number, or one per channel [C]. A decay of 1
    means integrate-and-fire. A spike resets the potential to 0 (hard) or lowers it by the threshold (soft).

    With `fraction_bits`, all potentials are multiples of 2**-fraction_bits. The decayed potential is rounded down
    (a shift in integer arithmetic), and a soft reset subtracts the threshold rounded down.
    """

    decay: float | Tensor
    v_th: Tensor
    initial: float | Tensor

    def __init__(
        self,
        decay: float | Tensor,
        v_th: Tensor,
        fraction_bits: int | None = None,
        *,
        reset: str = "hard",
        initial: float | Tensor = 0.0,
    ) -> None:
        super().__init__()
        functional.check_choice("reset", reset, functional.RESETS)
        self.register_buffer("v_th", v_th)
        for name, value in (("decay", decay), ("initial", initial)):
            if not isinstance(value, Tensor):
                setattr(self, name, value)
            elif value.shape == v_th.shape:
                self.register_buffer(name, value)
            else:
                raise ValueError(f"LIF: expected one {name}, or {len(v_th)}, got the shape {list(value.shape)}")
        self.fraction_bits, self.reset = fraction_bits, reset

    def step(self, current: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Run one timestep: current [N, C, ...] and potential after reset -> (spikes, potential after reset)."""
        decay, v_th = _factor(self.decay, current), per_channel(self.v_th, current)
        if self.fraction_bits is None:
            return functional.lif_step(current, v, decay=decay, v_th=v_th, reset=self.reset)
        one = 2.0**self.fraction_bits
        u = torch.floor(decay * v * one) / one + current
        fired = u > v_th
        if self.reset == "hard":
            return fired.to(current.dtype), u.masked_fill(fired, 0.0)
        return fired.to(current.dtype), torch.where(fired, u - torch.floor(v_th * one) / one, u)

    def forward(self, currents: Sequence[Tensor], timesteps: int, left: Sequence[Left] = ()) -> Tensor:
        """Return the spikes [T, N, C, ...] for the sum of the currents [T, N, C, ...].

        A current that is the same at every timestep may be [1, N, C, ...]. `left` is applied first, one per current.
        """
        currents = [x.expand(timesteps, *x.shape[1:]) for x in currents]
        left = left or [NOTHING] * len(currents)
        if kernels.integrates(currents[0]):
            return self._integrated(currents, left)
        low, high = (float(v) for v in self.v_th.aminmax())
        at_rest = not isinstance(self.initial, Tensor) and self.initial == 0  # what the kernels start from
        biased = any(other.bias is not None for other in left)
        if self.fraction_bits is None and at_rest and 0 < low == high and not biased:
            return self._fused(currents, [other.scale for other in left], low)
        currents = [other.applied(x) for x, other in zip(currents, left, strict=True)]
        v = self.rest(currents[0][0])
        spikes = []
        for currents_t in zip(*currents, strict=True):
            s, v = self.step(total(currents_t), v)
            spikes.append(s)
        return torch.stack(spikes)

    def _integrated(self, currents: Sequence[Tensor], left: Sequence[Left]) -> Tensor:
        """Fire on a GPU, without waiting for it."""
        dtype = currents[0].dtype
        if len(currents) > kernels.BRANCHES:
            wide = torch.promote_types(dtype, torch.float32)
            currents = [total([other.applied(x.to(wide)) for x, other in zip(currents, left, strict=True)])]
            left = [NOTHING]
        biases = [other.bias for other in left if other.bias is not None]
        decay, initial = self.decay, self.initial
        if not isinstance(initial, Tensor) and initial:  # every other number would compile another kernel
            initial = torch.full_like(self.v_th, initial)
        neurons = kernels.BareNeurons(
            scales=[other.scale for other in left],
            bias=total(biases) if biases else None,
            v_th=self.v_th,
            decays=decay if isinstance(decay, Tensor) else None,
            initials=initial if isinstance(initial, Tensor) else None,
            decay=0.0 if isinstance(decay, Tensor) else decay,
            reset=self.reset,
            fraction_bits=self.fraction_bits,
        )
        return kernels.integrate(currents, neurons).to(dtype)

    def _fused(self, currents: Sequence[Tensor], scales: Sequence[Tensor | None], v_th: float) -> Tensor:
        """Use the training kernel, with a normalisation that only scales."""
        if len(currents) > 2:  # the kernels of a GPU take at most two
            plain = [x for x, s in zip(currents, scales, strict=True) if s is None]
            scaled = [(x, s) for x, s in zip(currents, scales, strict=True) if s is not None]
            currents = [*([total(plain)] if plain else []), *(x for x, _ in scaled)]
            scales = [*([None] if plain else []), *(s for _, s in scaled)]
        n, channels = len(currents), len(self.v_th)
        dtype = torch.promote_types(currents[0].dtype, torch.float32)
        one = torch.ones(n, channels, dtype=dtype, device=currents[0].device)
        zero = torch.zeros_like(one)
        factor = torch.stack([o if s is None else s.to(dtype) for o, s in zip(one, scales, strict=True)])
        factor *= n**0.5 / v_th
        neuron: Any = {"decay": self.decay, "v_th": v_th, "width": 1.0, "reset": self.reset}
        spikes, _ = kernels.fire(currents, factor, zero, **neuron, eps=0.0, moments=(zero, one))
        return spikes

    def rest(self, current: Tensor) -> Tensor:
        """Return the potential before the first timestep."""
        zero = torch.zeros_like(current, dtype=torch.promote_types(current.dtype, torch.float32))
        return zero + _factor(self.initial, current)

    def extra_repr(self) -> str:
        settings = {name: getattr(self, name) for name in ("decay", "fraction_bits", "reset", "initial")}
        return ", ".join(
            [str(len(self.v_th)), *(f"{k}={'[C]' if isinstance(v, Tensor) else v}" for k, v in settings.items())]
        )


NODES = (nn.Conv2d, nn.Linear, Scale, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, LIF)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a `torch.nn.Linear` that uses these parameters without copying them."""
    layer = nn.Linear(weight.shape[1], len(weight), bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def total(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of the values."""
    return sum(values[1:], start=values[0])


def _factor(value: float | Tensor, x: Tensor) -> float | Tensor:
    return per_channel(value, x) if isinstance(value, Tensor) else value


def per_channel(p: Tensor, x: Tensor) -> Tensor:
    """Return a vector [C] in a shape that broadcasts with x [N, C, ...]."""
    return p.view(-1, *[1] * (x.ndim - 2))
