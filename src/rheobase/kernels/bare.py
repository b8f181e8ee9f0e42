"""Bare neurons: no normalisation and no gradients, as a deployed network on a GPU needs them.

    u[t] = decay * v[t-1] + sum of scale * x[t] over the branches + bias;  a spike where u[t] > v_th;  v[t] after reset

All steps in one launch, and nothing that the host must know: thresholds, scales and biases stay where they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rheobase.extras import installed
from rheobase.kernels.fused import empty_like_sequence

BRANCHES = 2
"""The most that neurons without normalisation take in a kernel."""


class BareNeurons(NamedTuple):
    """A layer of bare neurons; every tensor is [C]."""

    scales: list[Tensor | None]
    """Of every branch; None is 1."""
    bias: Tensor | None
    v_th: Tensor
    decays: Tensor | None
    """Where they differ; otherwise `decay` is that of all."""
    initials: Tensor | None
    """The potential that the first step decays; None is 0."""
    decay: float
    reset: str
    fraction_bits: int | None
    """With it, potentials are multiples of 2**-fraction_bits; see `deploy.network.LIF`."""


def integrates(x: Tensor) -> bool:
    """Whether `integrate` is for a network that is given x: on a GPU, and nobody wants a gradient."""
    return x.device.type == "cuda" and installed("triton") and not (torch.is_grad_enabled() and x.requires_grad)


def integrate(xs: Sequence[Tensor], neurons: BareNeurons) -> Tensor:
    """Spikes [T, N, C, ...] of one or two branches x of this shape."""
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
