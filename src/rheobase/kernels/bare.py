"""Bare neurons, without normalisation and gradients, for deployed networks on a GPU.

    u[t] = decay * v[t-1] + sum of scale * x[t] over the branches + bias;  a spike where u[t] > v_th;  v[t] after reset

One launch runs all timesteps. The host does not read thresholds, scales or biases, so they stay on the GPU.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rheobase.extras import installed
from rheobase.kernels.fused import empty_like_sequence

BRANCHES = 2
"""The largest number of branches that the kernel of bare neurons takes."""


class BareNeurons(NamedTuple):
    """A layer of bare neurons. Every tensor is [C]."""

    scales: list[Tensor | None]
    """One per branch. None means 1."""
    bias: Tensor | None
    v_th: Tensor
    decays: Tensor | None
    """None if all channels have the same `decay`."""
    initials: Tensor | None
    """The potential before the first timestep. None if it is 0."""
    decay: float
    reset: str
    fraction_bits: int | None
    """If given, potentials are multiples of 2**-fraction_bits; see `deploy.nodes.LIF`."""


def integrates(x: Tensor) -> bool:
    """Return whether `integrate` can run a network on input x: on a GPU, if no gradient is needed."""
    return x.device.type == "cuda" and installed("triton") and not (torch.is_grad_enabled() and x.requires_grad)


def integrate(xs: Sequence[Tensor], neurons: BareNeurons) -> Tensor:
    """Return the spikes [T, N, C, ...] of one or two branches x of this shape."""
    return _integrate(list(xs), *neurons)


@torch.library.custom_op(
    "rheobase::integrate",
    mutates_args=(),
    schema="(Tensor[] xs, Tensor?[] scales, Tensor? bias, Tensor v_th, Tensor? decays, Tensor? initials, float decay, "
    "str reset, int? fraction_bits) -> Tensor",
)
def _integrate(xs: list[Tensor], *arguments: Any) -> Tensor:
    from rheobase.kernels import triton

    return triton.integrate(xs, BareNeurons(*arguments))


@_integrate.register_fake
def _(xs: list[Tensor], *arguments: Any) -> Tensor:
    return empty_like_sequence(xs[0])
