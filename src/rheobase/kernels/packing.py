"""Pack spikes into one bit each.

With W = ceil(numel / 8) bytes, element j * W + w of the memory is bit j of byte w. Neighbours in memory stay
neighbours, so packing and unpacking access contiguous memory.

If T divides 8, a byte can hold all timesteps of its neurons (see `neurons_per_byte`). The soma's kernels on a GPU then
write bits together with the spikes, and read a branch of spikes from them.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Packed(NamedTuple):
    """What is needed besides the bits to rebuild a tensor of spikes."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


_marked = WeakTensorKeyDictionary()  # tensors of spikes -> their version when they were marked
_packed_already = WeakTensorKeyDictionary()  # spikes -> their version, bits and Packed


def mark_spikes(x: Tensor, bits: Tensor | None = None) -> None:
    """Mark a tensor as binary spikes. The mark holds for views of it too, and ends when it is changed in place.

    If given, `bits` are those that `pack` would return.
    """
    whole = x._base is not None and x._base.numel() == x.numel()
    _marked[x._base if whole else x] = x._version
    if bits is not None:
        _packed_already[x] = x._version, bits, _form(x)


def are_marked(x: Tensor) -> bool:
    """Return whether x was marked as spikes, or is a view of such a tensor, and has not changed since."""
    owners = (x,) if x._base is None else (x, x._base)
    return any(_marked.get(owner) == x._version for owner in owners)


def pack_once(spikes: Tensor, backend: str) -> tuple[Tensor, Packed]:
    """`pack`, but spikes that feed several synapses share their bits."""
    version, *result = _packed_already.get(spikes, (None,))
    if version != spikes._version:
        result = list(pack(spikes.detach(), backend))
        _packed_already[spikes] = spikes._version, *result
    bits, packed = result
    return bits, packed


def neurons_per_byte(spikes: Tensor) -> int:
    """Return how many neurons share a byte of these spikes [T, N, C, ...], packed; 0 if a byte has not all timesteps.

    With n neurons per byte, channels last and R rows of C channels, bit t * n + q of byte r * C + c is the spike at
    timestep t of channel c in row q * R / n + r.
    """
    steps, channels = spikes.shape[0], spikes.shape[2]
    shared = 8 // steps if steps in (1, 2, 4, 8) else 0
    if not shared or not spikes.movedim(2, -1).is_contiguous():
        return 0
    return 0 if spikes.numel() // (steps * channels) % shared else shared


def readable(stride: tuple[int, ...], beside: Tensor) -> bool:
    """Return whether the soma's kernels on a GPU can read packed spikes of this stride beside another branch."""
    return beside.stride() == stride and neurons_per_byte(beside) > 0


def pack(spikes: Tensor, backend: str) -> tuple[Tensor, Packed]:
    """Return the bits [ceil(numel / 8)] of a tensor that holds only 0 and 1."""
    if not _dense(spikes):
        spikes = spikes.contiguous()
    flat = spikes.as_strided((spikes.numel(),), (1,))
    bits = torch.empty(-(-len(flat) // 8), dtype=torch.uint8, device=flat.device)
    if backend == "triton":
        from rheobase.kernels import triton

        triton.pack(flat, bits)
    else:
        bits.zero_()
        for j, part in enumerate(flat.split(len(bits))):
            bits[: len(part)] |= part.to(torch.uint8) << j
    return bits, _form(spikes)


def _form(spikes: Tensor) -> Packed:
    return Packed(spikes.shape, spikes.stride(), spikes.dtype)


def unpack(bits: Tensor, packed: Packed, backend: str) -> Tensor:
    """Return the spikes in their original shape, memory order and dtype."""
    spikes = torch.empty_strided(packed.shape, packed.stride, dtype=packed.dtype, device=bits.device)
    flat = spikes.as_strided((spikes.numel(),), (1,))
    if backend == "triton":
        from rheobase.kernels import triton

        triton.unpack(bits, flat)
    else:
        for j, part in enumerate(flat.split(len(bits))):
            part.copy_((bits[: len(part)] >> j) & 1)
    return spikes


def _dense(x: Tensor) -> bool:
    """Return whether the elements fill contiguous memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
