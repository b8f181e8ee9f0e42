"""The activation of networks that are trained for conversion to few timesteps (Bu et al. 2022)."""

from typing import Any

import torch
from torch import Tensor, nn

from rheobase.kernels.qcfs import qcfs
from rheobase.nn.relu import ReluSoma


class QcfsSoma(ReluSoma):
    """A `ReluSoma` whose output is clipped at a learnt threshold and rounded to `levels` levels below it.

    Integrate-and-fire neurons with this threshold and half of it as initial potential fire at these rates (see
    `functional.qcfs`). The threshold starts at three standard deviations of the current. Bu et al. start at 8, but
    train three times as many epochs, in which it can come down.
    """

    def __init__(self, channels: int, branches: int = 1, *, levels: int = 8, **settings: Any) -> None:
        super().__init__(channels, branches, **settings)
        if levels < 1:
            raise ValueError(f"QcfsSoma: expected at least one level, got {levels}")
        self.levels = levels
        self.threshold = nn.Parameter(torch.tensor(3.0 * branches**0.5))

    def fire(self, current: Tensor) -> Tensor:
        return qcfs(current, self.threshold, self.levels)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, levels={self.levels}"
