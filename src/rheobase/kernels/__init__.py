"""Faster implementations of `functional.fire`, equal to it in spikes, moments and every gradient.

This is the only place that chooses one: `triton` on a GPU, `cpu` elsewhere, `reference` (the law itself) for what
neither covers. An explicit choice that cannot be met raises.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rheobase import functional
from rheobase.functional import Moments
from rheobase.kernels.fused import FusedFire, Settings
from rheobase.kernels.lean import Branch, Convolution, LeanFire
from rheobase.kernels.packing import are_spikes, pack_once, remember

__all__ = ["BACKENDS", "Branch", "Convolution", "are_spikes", "fire", "fire_lean", "interpreted", "remember"]

BACKENDS = ("auto", "reference", "triton", "cpu")


def fire(
    xs: Sequence[Tensor],
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    *,
    decay: float,
    v_th: float,
    width: float,
    eps: float,
    moments: Moments | None = None,
    group: ProcessGroup | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Moments]:
    """`functional.fire`, faster; with a process `group` the moments are those of all its members' batches."""
    functional.check_branches(xs, weights, biases, moments)
    chosen = _choose(backend, xs, group)
    if chosen == "reference":
        return functional.fire(xs, weights, biases, decay=decay, v_th=v_th, width=width, eps=eps, moments=moments)
    settings = Settings(decay, v_th, width, eps, group, chosen)
    spikes, mean, var = FusedFire.apply(settings, *_vectors(xs[0], weights, biases, moments), *xs)
    return spikes, (mean, var)


def fire_lean(
    branches: Sequence[Branch],
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    *,
    decay: float,
    v_th: float,
    width: float,
    eps: float,
    moments: Moments | None = None,
    group: ProcessGroup | None = None,
    keep_outputs: bool,
) -> tuple[Tensor, Moments]:
    """`fire` of convolutions of spikes, which keeps the spikes as bits and the outputs only if told to."""
    spikes, convolutions, kernels, binary = zip(*branches, strict=True)
    chosen = _choose("auto", spikes, group)
    if chosen == "reference":
        raise ValueError(f"saving memory is not supported for {len(spikes)} branches on {spikes[0].device}")
    settings = Settings(decay, v_th, width, eps, group, chosen)
    kept = [pack_once(s, chosen) if b else (s.detach(), None) for s, b in zip(spikes, binary, strict=True)]
    bits, packed = zip(*kept, strict=True)
    vectors = _vectors(spikes[0], weights, biases, moments)
    out, mean, var = LeanFire.apply(settings, convolutions, packed, keep_outputs, *vectors, *spikes, *kernels, *bits)
    return out, (mean, var)


def _vectors(
    x: Tensor, weights: Sequence[Tensor] | Tensor, biases: Sequence[Tensor] | Tensor, moments: Moments | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Weight, bias, mean and variance as [n, C] in the type that x is computed in."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    weight, bias = (p if isinstance(p, Tensor) else torch.stack(tuple(p)) for p in (weights, biases))
    mean, var = (None, None) if moments is None else (m.detach().to(dtype) for m in moments)
    return weight.to(dtype), bias.to(dtype), mean, var


def _choose(backend: str, xs: Sequence[Tensor], group: ProcessGroup | None) -> str:
    device = xs[0].device.type
    if backend == "auto":
        if device == "cuda" and len(xs) <= 2 and find_spec("triton") is not None:
            return "triton"
        if device == "cpu":
            return "cpu"
        if group is not None:
            raise ValueError(f"on {device} a process group needs Triton and at most two branches; got {len(xs)}")
        return "reference"
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend '{backend}'; choose one of {', '.join(BACKENDS)}")
    if backend == "reference" and group is not None:
        raise ValueError("backend 'reference' knows no process groups; use 'auto'")
    if backend == "cpu" and device != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got {xs[0].device}")
    if backend == "triton":
        if find_spec("triton") is None:
            raise ValueError("backend 'triton' needs the package triton; install rheobase[kernels]")
        if len(xs) > 2:
            raise ValueError(f"backend 'triton' takes one or two branches, got {len(xs)}; use 'auto'")
        if device != "cuda" and not interpreted():
            raise ValueError(f"backend 'triton' needs a GPU (or TRITON_INTERPRET=1), got tensors on {xs[0].device}")
    return backend


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on the CPU."""
    import triton

    return bool(triton.knobs.runtime.interpret)
