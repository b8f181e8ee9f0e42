"""The ReLU counterpart of a soma, for comparing spiking networks with ordinary ones."""

from typing import Any

from torch import Tensor

from rheobase.nn.soma import ReferenceSoma
from rheobase.nn.tdbn import TdBN


class ReluSoma(ReferenceSoma):
    """A layer of an ordinary network in place of a `Soma`: normalise every branch, add them, apply ReLU.

    It has as many parameters as a `Soma`. It has no time dimension: sequences have one timestep. It ignores the
    settings of spiking neurons.
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
            raise ValueError(f"a ReLU network has no time dimension: got {len(xs[0])} timesteps; use timesteps=1")
        return TdBN.current(self, *xs) if self.normalize else super().current(*xs)

    def fire(self, current: Tensor) -> Tensor:
        return current.relu()

    def extra_repr(self) -> str:
        return f"{self.channels}, branches={self.branches}, eps={self.eps}, momentum={self.momentum}"
