"""Alternatives to tdBN for the ablation, on the kernels of `nn.Soma`.

Each can replace `nn.Soma`: `build(name, soma=NoNorm)`. The kernels compute, with alpha = 1/sqrt(branches),

    current = sum over branches of weight * alpha * v_th * (x - mean) / sqrt(var + eps) + bias

so a variant changes the factor before the trainable weight (`gain`), the moments, or both.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.nn import Soma


class _Variant(Soma):
    def __init__(self, channels: int, branches: int = 1, *, normalize: bool = True, **neuron: Any) -> None:
        if not normalize:
            raise ValueError(
                f"{type(self).__name__} replaces the normalisation of a soma, but this network has somas without "
                "normalisation; choose another network"
            )
        super().__init__(channels, branches, **neuron)

    def _as_it_is(self, xs: Sequence[Tensor], gain: float) -> Tensor:
        """Fire without normalisation, by moments that change nothing."""
        mean = torch.zeros_like(self.running_mean)
        return self._fire(xs, self.weight * gain, (mean, torch.full_like(mean, 1 - self.eps)))[0]


class UnitAlpha(_Variant):
    """alpha = 1 on every branch, so that two branches add up to twice the variance."""

    @property
    def gain(self) -> float:
        """The factor before the trainable weight."""
        return self.branches**0.5

    def forward(self, *xs: Any) -> Tensor:
        spikes, (mean, var) = self._fire(xs, self.weight * self.gain, self._moments())
        if self.training:
            self._follow(mean, var)
        return spikes


class UnscaledNorm(UnitAlpha):
    """Plain batch normalisation: every branch becomes N(0, 1), whatever the threshold."""

    @property
    def gain(self) -> float:
        return self.branches**0.5 / self.v_th


class StepNorm(_Variant):
    """tdBN with separate statistics per timestep (torch's batch norm), for at most `timesteps` timesteps."""

    step_mean: Tensor
    step_var: Tensor

    def __init__(self, channels: int, branches: int = 1, *, timesteps: int = 4, **neuron: Any) -> None:
        super().__init__(channels, branches, **neuron)
        self.register_buffer("step_mean", torch.zeros(timesteps, branches, channels))
        self.register_buffer("step_var", torch.ones(timesteps, branches, channels))

    def forward(self, *xs: Any) -> Tensor:
        if len(xs[0]) > len(self.step_mean):
            raise ValueError(f"StepNorm: expected at most {len(self.step_mean)} timesteps, got {len(xs[0])}")
        return self._as_it_is([self._normalised(x, branch) for branch, x in enumerate(xs)], 1.0)

    def _normalised(self, x: Tensor, branch: int) -> Tensor:
        steps = [
            F.batch_norm(
                x_t,
                self.step_mean[t, branch],
                self.step_var[t, branch],
                training=self.training,
                momentum=self.momentum,
                eps=self.eps,
            )
            for t, x_t in enumerate(x)
        ]
        return torch.cat(steps).unflatten(0, x.shape[:2])


class NoNorm(_Variant):
    """No normalisation: neurons receive the synapse outputs times a weight per channel, plus a bias."""

    def forward(self, *xs: Any) -> Tensor:
        return self._as_it_is(xs, self.branches**0.5 / self.v_th)


class NeuNorm(NoNorm):
    """NeuNorm (Wu et al. 2019): subtract a slow mean of the spikes over channels from the output.

    x[t] = k * x[t-1] + (1 - k) * mean of s[t] over channels. The output is s - factor * x with a learnt factor per
    channel, so it is not binary. k = 0.9 and initial factors of 1 are our reading of the paper.
    """

    memory = 0.9

    def __init__(self, channels: int, branches: int = 1, **neuron: Any) -> None:
        super().__init__(channels, branches, **neuron)
        self.factor = nn.Parameter(torch.ones(channels))

    def forward(self, *xs: Any) -> Tensor:
        spikes = super().forward(*xs)
        slow = torch.zeros_like(spikes[0].mean(1, keepdim=True))
        out = []
        for s in spikes:
            slow = self.memory * slow + (1 - self.memory) * s.mean(1, keepdim=True)
            out.append(s - self.factor.view(-1, *[1] * (s.ndim - 2)) * slow)
        return torch.cat(out).unflatten(0, spikes.shape[:2]).to(spikes.dtype)


VARIANTS: dict[str, tuple[str, type[Soma]]] = {
    "tdbn": ("tdBN", Soma),
    "step": ("batch norm per timestep", StepNorm),
    "unscaled": ("batch norm without threshold scaling", UnscaledNorm),
    "unit_alpha": ("tdBN with alpha = 1 on both branches", UnitAlpha),
    "neunorm": ("NeuNorm", NeuNorm),
    "none": ("no normalisation", NoNorm),
}
