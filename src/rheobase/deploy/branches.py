"""The branches that a soma or tdBN reads, and tdBN as a factor and a shift per channel (Eq. 9-10).

    W' = weight * alpha * v_th * W / sqrt(var + eps)
    B' = weight * alpha * v_th * (B - mean) / sqrt(var + eps) + bias

An identity shortcut becomes a synapse too: one scale per channel.

A sum is not a node. A node that reads a sum reads each of its terms. So spikes stay spikes when they are added, and
neurons that receive a sum of currents have several synapses.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.nodes import Scale, linear
from rheobase.nn import TdBN


@dataclass(frozen=True, eq=False)
class Branch:
    """A synapse that tdBN may still scale. It becomes a node when another node reads it.

    Its output is factor * module(sum of the sources) + shift, per channel. An identity without a factor changes
    nothing and does not become a node.
    """

    name: str
    module: nn.Module  # Conv2d, Linear or Identity
    sources: tuple[str, ...]
    factor: Tensor | None = None  # in double precision
    shift: Tensor | None = None
    dtype: torch.dtype | None = None  # of the tdBN layer

    def scaled(self, factor: Tensor, shift: Tensor | None, dtype: torch.dtype) -> "Branch":
        """Return the branch after a further factor and shift."""
        if self.shift is not None:
            shift = factor * self.shift if shift is None else factor * self.shift + shift
        return replace(self, factor=factor if self.factor is None else factor * self.factor, shift=shift, dtype=dtype)

    def bias(self) -> Tensor | None:
        """Return the bias of the branch: that of its module, scaled, plus the shift."""
        own = None if isinstance(self.module, nn.Identity) else self.module.bias
        if not isinstance(own, Tensor):
            return self.shift
        own = own.detach().double() if self.factor is None else self.factor * own.detach().double()
        return own if self.shift is None else own + self.shift

    def synapse(self, bias: Tensor | None) -> nn.Module:
        """Return the node with this bias. It acts on one timestep [N, C, ...]."""
        module, factor, dtype = self.module, self.factor, self.dtype
        if isinstance(module, nn.Identity):
            assert factor is not None
            return Scale(factor.to(dtype, copy=True), None if bias is None else bias.to(dtype, copy=True))
        assert isinstance(module, (nn.Conv2d, nn.Linear))
        weight = module.weight.detach()
        dtype = dtype or weight.dtype
        if factor is not None:
            weight = weight.double() * factor.view(-1, *[1] * (weight.ndim - 1))
        weight, bias = weight.to(dtype, copy=True), None if bias is None else bias.to(dtype, copy=True)
        if isinstance(module, nn.Linear):
            return linear(weight, bias)
        assert not isinstance(module.padding, str)
        return convolution(weight, bias, module.stride, module.padding, module.dilation, module.groups)


Term = str | Branch  # the name of a node, or a branch that may become one
Value = tuple[Term, ...]  # a sum


def without_identities(value: Value) -> Value:
    """Return the same sum without identities that change nothing."""
    found: list[Term] = []
    for term in value:
        nothing = isinstance(term, Branch) and isinstance(term.module, nn.Identity) and term.factor is None
        found += term.sources if isinstance(term, Branch) and nothing else (term,)
    return tuple(found)


def normalisation(norm: TdBN) -> list[tuple[Tensor, Tensor]]:
    """Return tdBN of every branch as factor * x + shift per channel, in double precision."""
    weight, bias, mean, var = (
        p.detach().double() for p in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    )
    factor = weight * float(norm.deviation) / torch.sqrt(var + norm.eps)
    return list(zip(factor.unbind(), (bias - factor * mean).unbind(), strict=True))
