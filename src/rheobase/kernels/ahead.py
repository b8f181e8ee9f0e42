"""Compile the kernels of somas before their first use. This imports Triton, so it is only for GPUs."""

from collections.abc import Iterable
from math import inf

import torch

from rheobase.kernels import triton as launchers
from rheobase.kernels.fused import Neurons, Received
from rheobase.kernels.launching import compiled_ahead


def compile_training(calls: Iterable[Received]) -> None:
    """Compile the forward and backward kernels of all these calls, on the current GPU."""
    with compiled_ahead():
        for call in dict.fromkeys(calls):
            _launch_all(call)


def _launch_all(call: Received) -> None:
    xs = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in call.xs]
    x, n = xs[0], len(xs)
    if call.reads_bits:
        xs[1] = torch.empty(x.numel() // 8, dtype=torch.uint8, device="meta")
    vectors = x.new_empty(n, x.shape[2], dtype=torch.promote_types(x.dtype, torch.float32))
    decays = vectors[0] if call.learns_decay else None
    neurons = Neurons(vectors, vectors, vectors, vectors, decays, call.constants)
    count = inf
    if call.normalises:
        found = launchers.statistics(xs)
        count = x.numel() / x.shape[2]
        if call.members is not None:
            launchers.join(found.expand(call.members, -1, -1))
            count = 1.0
    grad, _ = launchers.forward(xs, neurons, call.packs)
    if call.packs:  # for the gradients of the synapses that the spikes feed
        launchers.unpack(grad.new_empty(-(-grad.numel() // 8), dtype=torch.uint8), grad.flatten())
    sums, du = launchers.backward_sums(grad, xs, neurons)
    launchers.backward_inputs(grad, xs, neurons, du, sums[: 1 + n], count, ())
