"""The ReLU twin of a soma: what a spiking network is compared with."""

from typing import Any

from torch import Tensor

from rheobase.nn.soma import ReferenceSoma
from rheobase.nn.tdbn import TdBN


class ReluSoma(ReferenceSoma):
    """Batch normalisation of every branch, their sum, ReLU: a layer of an ordinary network, in the place of `Soma`.

    It has as many parameters as a `Soma`, and knows no time: sequences have one step. The settings of spiking neurons
    mean nothing to it.
    """

    def __init__(
        self,
        channels: int,
        branches: int = 1,
        *,
        normalize: bool = True,
        eps: float = 1e-5,
        momentum: float = 0.1,
        **spiking: Any,
    ) -> None:
        super().__init__(channels, branches, normalize=normalize, eps=eps, momentum=momentum)

    @property
    def deviation(self) -> float:
        return 1.0

    def current(self, *xs: Tensor) -> Tensor:
        if len(xs[0]) != 1:
            raise ValueError(f"a ReLU network knows no time: expected one step, got {len(xs[0])}; use timesteps=1")
        return TdBN.current(self, *xs) if self.normalize else super().current(*xs)

    def fire(self, current: Tensor) -> Tensor:
        return current.relu()

    def extra_repr(self) -> str:
        return f"{self.channels}, branches={self.branches}, eps={self.eps}, momentum={self.momentum}"
