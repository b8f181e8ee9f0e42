"""The ReLU twin of a soma: what a spiking network is compared with."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase import functional
from rheobase.nn.soma import ReferenceSoma


class ReluSoma(ReferenceSoma):
    """Batch normalisation of every branch, their sum, ReLU: a layer of an ordinary network, in the place of `Soma`.

    It has as many parameters as a `Soma`, and knows no time: sequences have one step. The settings of spiking neurons
    mean nothing to it.
    """

    def __init__(
        self, channels: int, branches: int = 1, *, eps: float = 1e-5, momentum: float = 0.1, **spiking: Any
    ) -> None:
        super().__init__(channels, branches, eps=eps, momentum=momentum)

    def current(self, *xs: Tensor) -> Tensor:
        if len(xs[0]) != 1:
            raise ValueError(f"a ReLU network knows no time: expected one step, got {len(xs[0])}; use timesteps=1")
        normalised = self._normalised(xs) if self.group is None or not self.training else self._jointly_normalised(xs)
        return sum(normalised[1:], start=normalised[0])

    def fire(self, current: Tensor) -> Tensor:
        return current.relu()

    def _normalised(self, xs: tuple[Tensor, ...]) -> list[Tensor]:
        mean, var = self.running_mean, self.running_var
        if self.training:
            functional.check_count(xs[0])
            mean, var = torch.zeros_like(mean), torch.zeros_like(var)
        normalised = [
            # a momentum of 1 leaves the moments of the batch in mean and var
            F.batch_norm(x[0], mean[i], var[i], self.weight[i], self.bias[i], self.training, 1.0, self.eps)[None]
            for i, x in enumerate(xs)
        ]
        if self.training:
            count = xs[0].numel() / self.channels
            self._follow(mean, var * ((count - 1) / count))  # torch's variance is the unbiased one
        return normalised

    def _jointly_normalised(self, xs: tuple[Tensor, ...]) -> list[Tensor]:
        """With the moments of all members of the process group."""
        wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in xs]
        rows = zip(wide, self.weight, self.bias, *self._batch_moments(wide), strict=True)
        return [
            functional.tdbn(x, w, b, alpha=1.0, v_th=1.0, mean=mean, var=var, eps=self.eps)
            for x, w, b, mean, var in rows
        ]

    def extra_repr(self) -> str:
        return f"{self.channels}, branches={self.branches}, eps={self.eps}, momentum={self.momentum}"
