"""The memory-saving path: the fused soma together with the convolutions that feed it.

For the backward pass, it keeps the incoming spikes, one bit each, and the outputs of the convolutions unless these are
recomputed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rheobase.functional import check_branches
from rheobase.kernels import convolution
from rheobase.kernels.fused import (
    Neurons,
    Settings,
    leave_out_all_but_spikes,
    refuse_higher_derivatives,
    run_backward,
    run_forward,
)
from rheobase.kernels.packing import Packed, pack_once, readable, unpack
from rheobase.kernels.winograd import Window


class Synapse(NamedTuple):
    """The convolution of a branch, without its weight."""

    window: Window
    keep_output: bool
    """If false, the backward pass recomputes it."""

    def output(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution of a sequence."""
        return convolution.convolve(x.flatten(0, 1), weight, None, self.window).unflatten(0, x.shape[:2])

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and of the weight."""
        grad_x, grad_weight = convolution.gradients(grad.flatten(0, 1), x.flatten(0, 1), weight, self.window)
        return grad_x.unflatten(0, x.shape[:2]), grad_weight


class Branch(NamedTuple):
    """An input of a soma: x [T, N, C, ...], and perhaps a convolution of it that the soma carries out."""

    x: Tensor
    binary: bool
    """Whether x is known to be spikes, so that it can be kept as bits."""
    synapse: Synapse | None = None
    weight: Tensor | None = None

    def output(self) -> Tensor:
        """Carry out the convolution, with autograd."""
        return self.x if self.synapse is None or self.weight is None else self.synapse.output(self.x, self.weight)


class Deferred(Protocol):
    """An object that becomes a branch or a tensor when a soma receives it."""

    def branch(self) -> Tensor | Branch: ...


def fire_saving(
    branches: Sequence[Branch],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    decays: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, ...]:
    """Spikes, mean, variance, and the packed spikes if asked for."""
    xs, binary, synapses, kernels = zip(*branches, strict=True)
    kept = [pack_once(x, settings.backend) if b else (x.detach(), None) for x, b in zip(xs, binary, strict=True)]
    bits, packed = zip(*kept, strict=True)
    return _SavingFire.apply(settings, synapses, packed, weight, bias, mean, var, decays, *xs, *kernels, *bits)


class _SavingFire(torch.autograd.Function):
    """The fused soma. `tensors` are the inputs of all branches, the weights of convolutions, and the kept inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        synapses: list[Synapse | None],
        packed: list[Packed | None],
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        decays: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        n = len(synapses)
        inputs, kernels, bits = tensors[:n], tensors[n : 2 * n], tensors[2 * n :]
        xs = [
            x if synapse is None else synapse.output(x, kernel)
            for synapse, x, kernel in zip(synapses, inputs, kernels, strict=True)
        ]
        check_branches(xs, weight, bias, None if mean is None or var is None else (mean, var))
        outputs = [x if synapse and synapse.keep_output else None for x, synapse in zip(xs, synapses, strict=True)]
        ctx.reads_bits = _reads_bits(xs, synapses, packed, settings.backend)
        if ctx.reads_bits:
            xs[1] = bits[1]
        result = run_forward(xs, weight, bias, mean, var, decays, settings)
        ctx.save_for_backward(*result.neurons[:-1], *bits, *kernels, *outputs)
        ctx.settings, ctx.synapses, ctx.packed, ctx.values = settings, synapses, packed, result.values
        leave_out_all_but_spikes(ctx, result)
        return result.spikes, result.neurons.mean, result.neurons.var, result.bits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_higher_derivatives()
        if grads[0] is None:
            return (None,) * len(ctx.needs_input_grad)
        weight, bias, mean, var, decays, *saved = ctx.saved_tensors
        constants, group, backend, _ = ctx.settings
        n = len(ctx.synapses)
        bits, kernels, xs = saved[:n], saved[n : 2 * n], saved[2 * n :]
        if ctx.reads_bits:
            xs[1] = bits[1]

        def unpacked(i: int) -> Tensor:
            packed = ctx.packed[i]
            return bits[i] if packed is None else unpack(bits[i], packed, backend)

        missing = [i for i, x in enumerate(xs) if x is None]
        rebuilt = [i for i in missing if ctx.synapses[i] or ctx.packed[i]]
        for i in missing:
            synapse = ctx.synapses[i]
            xs[i] = unpacked(i) if synapse is None else synapse.output(unpacked(i), kernels[i])
        neurons = Neurons(weight, bias, mean, var, decays, constants)
        alone = not any(ctx.needs_input_grad[i] for i in (3, 4, 7))  # of weight, bias and decays
        found = run_backward(
            grads[0], xs, neurons, ctx.values, group, backend, disposable=rebuilt, by_inputs_alone=alone
        )
        del xs, saved  # whole sequences: free them before the gradients of the convolutions need memory
        grad_inputs, grad_kernels = [], []
        for i, synapse in enumerate(ctx.synapses):
            grad_x, grad_kernel = found.xs.pop(0), None
            if synapse is not None:
                grad_x, grad_kernel = synapse.gradients(grad_x, unpacked(i), kernels[i])
            grad_inputs.append(grad_x)
            grad_kernels.append(grad_kernel)
        of_neurons = (found.weight, found.bias, None, None, found.decays)
        return None, None, None, *of_neurons, *grad_inputs, *grad_kernels, *[None] * n


def _reads_bits(
    xs: Sequence[Tensor], synapses: Sequence[Synapse | None], packed: Sequence[Packed | None], backend: str
) -> bool:
    """Return whether the kernels can read the second of two branches, spikes without a synapse, from its bits."""
    if backend != "triton" or len(xs) != 2 or synapses[1] is not None or packed[1] is None:
        return False
    return readable(packed[1].stride, xs[0])
