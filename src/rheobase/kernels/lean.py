"""The fused soma together with the convolutions that feed it, keeping as little as possible for the backward pass.

Kept are the incoming spikes, one bit each, and the convolutions' outputs unless they are computed again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rheobase.functional import check_branches
from rheobase.kernels import winograd
from rheobase.kernels.fused import Settings, refuse_higher_derivatives, run_backward, run_forward
from rheobase.kernels.packing import Packed, unpack


class Convolution(NamedTuple):
    """How a synapse convolves; its weight travels as a tensor."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def output(self, s: Tensor, weight: Tensor) -> Tensor:
        spikes = s.flatten(0, 1)
        if winograd.applies(spikes, weight, self):
            x = winograd.convolve(spikes, weight)
        else:
            x = torch.ops.aten.convolution(spikes, weight, None, *self._window())
        return x.unflatten(0, s.shape[:2])

    def gradients(self, grad: Tensor, s: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Of the spikes and of the weight."""
        grad, spikes = grad.flatten(0, 1), s.flatten(0, 1)
        if winograd.applies(spikes, weight, self):
            grad_s, grad_weight = winograd.gradients(grad, spikes, weight)
        else:
            grad_s, grad_weight, _ = torch.ops.aten.convolution_backward(
                grad, spikes, weight, None, *self._window(), [True, True, False]
            )
        return grad_s.unflatten(0, s.shape[:2]), grad_weight

    def _window(self) -> tuple[Any, ...]:
        """As torch's operators take it; they could also transpose."""
        return self.stride, self.padding, self.dilation, False, [0, 0], self.groups


class Branch(NamedTuple):
    """Spikes and, unless they go to the soma as they are, the convolution between."""

    spikes: Tensor
    convolution: Convolution | None = None
    weight: Tensor | None = None
    binary: bool = True
    """Otherwise they have other values than 0 and 1, and are kept as they are."""


class LeanFire(torch.autograd.Function):
    """Its tensors: spikes of all branches, weights of their convolutions (or None), and what is kept of the spikes."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        convolutions: list[Convolution | None],
        packed: list[Packed | None],
        keep_outputs: bool,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = len(convolutions)
        spikes, kernels, bits = tensors[:n], tensors[n : 2 * n], tensors[2 * n :]
        xs = [
            s if convolution is None else convolution.output(s, kernel)
            for convolution, s, kernel in zip(convolutions, spikes, kernels, strict=True)
        ]
        check_branches(xs, weight, bias, None if mean is None or var is None else (mean, var))
        result = run_forward(xs, weight, bias, mean, var, settings)
        outputs = [x if keep_outputs and convolution else None for x, convolution in zip(xs, convolutions, strict=True)]
        ctx.save_for_backward(weight, bias, result.mean, result.var, *bits, *kernels, *outputs)
        ctx.settings, ctx.convolutions, ctx.packed, ctx.count = settings, convolutions, packed, result.values
        ctx.mark_non_differentiable(result.mean, result.var)
        return result.spikes, result.mean, result.var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_higher_derivatives()
        weight, bias, mean, var, *saved = ctx.saved_tensors
        n = len(ctx.convolutions)
        bits, kernels, xs = saved[:n], saved[n : 2 * n], saved[2 * n :]

        def spikes(i: int) -> Tensor:
            packed = ctx.packed[i]
            return bits[i] if packed is None else unpack(bits[i], packed, ctx.settings.backend)

        missing = [i for i, x in enumerate(xs) if x is None]
        rebuilt = [i for i in missing if ctx.convolutions[i] or ctx.packed[i]]
        for i in missing:
            convolution = ctx.convolutions[i]
            xs[i] = spikes(i) if convolution is None else convolution.output(spikes(i), kernels[i])
        grad_weight, grad_bias, grad_xs = run_backward(
            grads[0], xs, weight, bias, mean, var, ctx.count, ctx.settings, disposable=rebuilt
        )
        del xs, saved  # a whole sequence each: gone before the convolutions' gradients take their place
        grad_spikes, grad_kernels = [], []
        for i, convolution in enumerate(ctx.convolutions):
            grad_s, grad_kernel = grad_xs.pop(0), None
            if convolution is not None:
                grad_s, grad_kernel = convolution.gradients(grad_s, spikes(i), kernels[i])
            grad_spikes.append(grad_s)
            grad_kernels.append(grad_kernel)
        vectors = (grad_weight, grad_bias, None, None)
        return None, None, None, None, *vectors, *grad_spikes, *grad_kernels, *[None] * n
