"""Faster implementations. `fire` equals `functional.fire` in spikes, moments and every gradient, and `convolve` equals
`torch.conv2d`. `integrate` is for the bare neurons of a deployed network on a GPU.

This is the only place that chooses an implementation of `fire`: `triton` on a GPU, `cpu` on a CPU, and `reference` (the
law itself) for everything that neither covers. An explicit choice that is impossible raises an error.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rheobase import functional
from rheobase.extras import installed
from rheobase.functional import Moments
from rheobase.kernels import bare, fused
from rheobase.kernels.bare import BRANCHES, BareNeurons, integrate, integrates
from rheobase.kernels.convolution import CAN_PREPARE, PreparedWeight, convolve
from rheobase.kernels.fused import Constants, FusedFire, Settings, is_static
from rheobase.kernels.group import joined_moments
from rheobase.kernels.light import lighten
from rheobase.kernels.packing import are_marked, mark_spikes, readable
from rheobase.kernels.saving import Branch, Deferred, Synapse, fire_saving
from rheobase.kernels.winograd import Window

__all__ = [
    "BACKENDS", "BRANCHES", "CAN_PREPARE", "BareNeurons", "Branch", "PreparedWeight", "Synapse", "Window", "are_marked",
    "convolve", "fire", "integrate", "integrates", "interpreted", "is_static", "joined_moments", "mark_spikes",
    "readable",
]  # fmt: skip

lighten([*vars(fused).values(), *vars(bare).values()])

BACKENDS = ("auto", "reference", "triton", "cpu")
"""The implementations of `fire`."""


def fire(
    xs: Sequence[Tensor | Deferred],
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    *,
    decay: float | Tensor,
    v_th: float | Tensor,
    width: float | Tensor,
    eps: float,
    surrogate: str = "rectangle",
    reset: str = "hard",
    reset_gradient: bool = True,
    moments: Moments | None = None,
    group: ProcessGroup | None = None,
    pack: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Moments]:
    """Compute `functional.fire`, faster. With a process `group`, the moments are those of the batches of all members.

    The spikes are marked as such, for synapses that keep them as bits. With `pack`, they are packed at once.
    `xs` may contain convolutions that this function carries out itself, to keep less for the backward pass. If `v_th`
    or `width` is a tensor, it may need a gradient, which only the law has. All implementations have that of `decay`.
    """
    functional.check_choice("surrogate", surrogate, functional.SURROGATES)
    functional.check_choice("reset", reset, functional.RESETS)
    neuron: Any = {"decay": decay, "v_th": v_th, "width": width, "eps": eps}
    tensors = [name for name, value in neuron.items() if isinstance(value, Tensor) and name != "decay"]
    neuron |= {"surrogate": surrogate, "reset": reset, "reset_gradient": reset_gradient}
    branches = [x if isinstance(x, Tensor) else x.branch() for x in xs]
    inputs = [x.x if isinstance(x, Branch) else x for x in branches]
    saving = any(isinstance(x, Branch) for x in branches)
    if not saving:  # otherwise checked after the convolutions
        functional.check_branches(inputs, weights, biases, moments)
    chosen = _choose(backend, inputs, group, tensors)
    if chosen == "reference":
        outputs = [x.output() if isinstance(x, Branch) else x for x in branches]
        spikes, found = functional.fire(outputs, weights, biases, **neuron, moments=moments)
        _mark(spikes, None)
        return spikes, found
    vectors = _vectors(inputs[0], weights, biases, moments, decay)
    if isinstance(decay, Tensor):
        neuron["decay"] = 0.0
    settings = Settings(Constants(**neuron), group, chosen, pack and _marks())
    if saving:
        marked = [x if isinstance(x, Branch) else Branch(x, are_marked(x)) for x in branches]
        spikes, mean, var, bits = fire_saving(marked, *vectors, settings)
    else:
        spikes, mean, var, bits = FusedFire.apply(settings, *vectors, *inputs)
    _mark(spikes, bits if len(bits) else None)
    return spikes, (mean, var)


def _marks() -> bool:
    """Return whether synapses keep something for a backward pass, and do it themselves."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _mark(spikes: Tensor, bits: Tensor | None) -> None:
    if _marks():
        mark_spikes(spikes, bits)


def _vectors(
    x: Tensor,
    weights: Sequence[Tensor] | Tensor,
    biases: Sequence[Tensor] | Tensor,
    moments: Moments | None,
    decay: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return weight, bias, mean and variance [n, C], and learnt decays [C], in the dtype of the computation."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    weight, bias = (p if isinstance(p, Tensor) else torch.stack(tuple(p)) for p in (weights, biases))
    mean, var = (None, None) if moments is None else (m.detach().to(dtype) for m in moments)
    decays = functional.decays(decay, weight.shape[1]).to(dtype) if isinstance(decay, Tensor) else None
    return weight.to(dtype), bias.to(dtype), mean, var, decays


def _choose(backend: str, xs: Sequence[Tensor], group: ProcessGroup | None, tensors: Sequence[str]) -> str:
    """Choose an implementation. `tensors` are the names of the neuron's settings that are tensors."""
    device = xs[0].device.type
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend '{backend}'; choose one of {', '.join(BACKENDS)}")
    if tensors and (group is not None or backend not in ("auto", "reference")):
        where = "a process group" if group is not None else f"backend '{backend}'"
        raise ValueError(
            f"{where} needs the neuron's settings as numbers, but {' and '.join(tensors)} came as a tensor"
        )
    if backend == "auto":
        if tensors:
            return "reference"
        if device == "cuda" and len(xs) <= 2 and installed("triton"):
            return "triton"
        if device == "cpu":
            return "cpu"
        if group is not None:
            raise ValueError(f"on {device} a process group needs Triton and at most two branches; got {len(xs)}")
        return "reference"
    if backend == "reference" and group is not None:
        raise ValueError("backend 'reference' does not support process groups; use 'auto'")
    if backend == "cpu" and device != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got {xs[0].device}")
    if backend == "triton":
        if not installed("triton"):
            raise ValueError("backend 'triton' needs the package triton; install rheobase[kernels]")
        if len(xs) > 2:
            raise ValueError(f"backend 'triton' takes one or two branches, got {len(xs)}; use 'auto'")
        if device != "cuda" and not interpreted():
            raise ValueError(f"backend 'triton' needs a GPU (or TRITON_INTERPRET=1), got tensors on {xs[0].device}")
    return backend


def interpreted() -> bool:
    """Return whether Triton runs kernels in its interpreter, on the CPU."""
    import triton

    return bool(triton.knobs.runtime.interpret)
