"""Threshold-dependent batch normalisation as a layer: parameters, running statistics, process groups."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from rheobase import functional, kernels
from rheobase.functional import Moments
from rheobase.nn.convolution import DeferredConv, carried_out


class TdBN(nn.Module):
    """Normalise every branch by tdBN with alpha = 1/sqrt(branches) and add them: the input current of neurons.

    It is the base of `Soma`. It is also used alone, where blocks pass on currents instead of spikes. Training uses the
    moments of the batch, evaluation the running moments. With a process `group` (see `distributed`), the batch is that
    of all processes together.
    """

    running_mean: Tensor
    running_var: Tensor
    group: ProcessGroup | None = None
    normalize = True  # some somas receive currents that an earlier layer normalised

    def __init__(
        self, channels: int, branches: int = 1, *, v_th: float = 0.5, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if channels < 1 or branches < 1:
            raise ValueError(f"{name}: expected at least one channel and branch, got {channels} and {branches}")
        if not (v_th > 0 and eps > 0 and 0 <= momentum <= 1):
            raise ValueError(f"{name}: expected v_th, eps > 0 and momentum in [0, 1], got {v_th}, {eps}, {momentum}")
        self.channels, self.branches = channels, branches
        self.v_th, self.eps, self.momentum = v_th, eps, momentum
        self.weight = nn.Parameter(torch.ones(branches, channels))
        self.bias = nn.Parameter(torch.zeros(branches, channels))
        self.register_buffer("running_mean", torch.zeros(branches, channels))
        self.register_buffer("running_var", torch.ones(branches, channels))

    @property
    def deviation(self) -> float:
        """Standard deviation of a normalised branch, before its weight."""
        return self.v_th * self.branches**-0.5

    def forward(self, *xs: Tensor | DeferredConv) -> Tensor:
        """Return the current of one synapse output per branch."""
        self._check_number(xs)
        return self.current(*map(carried_out, xs))

    def current(self, *xs: Tensor) -> Tensor:
        """Return the sum of the normalised branches."""
        if self.training and self.group is not None:
            branches = self._jointly_normalised(xs)
        else:
            branches = self._each_normalised(xs)
        return sum(branches[1:], start=branches[0])

    def _each_normalised(self, xs: Sequence[Tensor]) -> list[Tensor]:
        branches, means, variances = [], [], []
        for i, x in enumerate(xs):
            steps = x[:1] if kernels.is_static(x) else x  # in a static input all timesteps are the same
            mean, var = self.running_mean[i], self.running_var[i]
            if self.training:
                functional.check_count(steps)
                mean, var = torch.zeros_like(mean), torch.zeros_like(var)
            weight, bias = self.weight[i] * self.deviation, self.bias[i]
            # a momentum of 1 leaves the moments of the batch in mean and var
            flat = F.batch_norm(steps.flatten(0, 1), mean, var, weight, bias, self.training, 1.0, self.eps)
            branches.append(flat.unflatten(0, steps.shape[:2]).expand_as(x))
            count = steps.numel() / self.channels
            means.append(mean)
            variances.append(var * ((count - 1) / count))  # torch returns the unbiased variance
        if self.training:
            self._follow(torch.stack(means), torch.stack(variances))
        return branches

    def _jointly_normalised(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Normalise with the moments of the whole process group."""
        wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in xs]
        rows = zip(wide, self.weight, self.bias, *self._batch_moments(wide), strict=True)
        return [
            functional.tdbn(x, w, b, alpha=1.0, v_th=self.deviation, mean=mean, var=var, eps=self.eps).to(xs[0].dtype)
            for x, w, b, mean, var in rows
        ]

    def _check_number(self, xs: Sequence[Any]) -> None:
        if len(xs) != self.branches:
            raise ValueError(f"{type(self).__name__}: expected {self.branches} branches, got {len(xs)}")

    def _moments(self) -> Moments | None:
        """Return the running moments in evaluation. None in training means those of the batch."""
        return None if self.training else (self.running_mean, self.running_var)

    def _batch_moments(self, xs: Sequence[Tensor]) -> Moments:
        """Return the moments of the batch, and move the running ones towards them."""
        if self.group is not None:
            mean, var = kernels.joined_moments(xs, self.group)
        else:
            mean, var = (torch.stack(values) for values in zip(*map(functional.moments, xs), strict=True))
        self._follow(mean, var)
        return mean, var

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Move the running moments towards these, now or `together` with those of other layers."""
        postponed = None if torch.compiler.is_compiling() else _postponed.get()
        if postponed is None:
            self._move(mean, var)
        else:
            postponed.append((self, mean.detach(), var.detach()))

    @torch.no_grad()
    def _move(self, mean: Tensor, var: Tensor) -> None:
        """Update in place, because CUDA graphs hold on to the tensors."""
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be copied and saved, which excludes the process group."""
        return {name: value for name, value in self.__dict__.items() if name != "group"}

    def extra_repr(self) -> str:
        return f"{self.channels}, branches={self.branches}, v_th={self.v_th}, eps={self.eps}, momentum={self.momentum}"


_postponed: ContextVar[list[tuple[TdBN, Tensor, Tensor]] | None] = ContextVar("postponed", default=None)


@contextmanager
def together() -> Iterator[None]:
    """Postpone updates of running moments to the end, and do them all in a few operations instead of two per layer."""
    moves: list[tuple[TdBN, Tensor, Tensor]] = []
    token = _postponed.set(moves)
    try:
        yield
    finally:
        _postponed.reset(token)
    turns: Counter[TdBN] = Counter()  # a layer that ran several times moves several times
    lists: dict[tuple[int, float], tuple[list[Tensor], list[Tensor]]] = {}
    for layer, *moments in moves:
        running, targets = lists.setdefault((turns[layer], layer.momentum), ([], []))
        for own, moment in zip((layer.running_mean, layer.running_var), moments, strict=True):
            running.append(own)
            targets.append(moment.to(own.dtype))
        turns[layer] += 1
    with torch.no_grad():
        for (_, momentum), (running, targets) in lists.items():
            torch._foreach_lerp_(running, targets, momentum)


def normalisations(network: nn.Module) -> list[TdBN]:
    """Return all layers of a network that keep running moments, including somas."""
    return [module for module in network.modules() if isinstance(module, TdBN)]
