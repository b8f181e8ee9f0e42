"""Somas on the law, open to observation and to derivatives of any order."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.nn import Soma, set_memory


class LawSoma(Soma):
    """`nn.Soma` on plain tensors, for derivatives of any order. `observe` sees, and may replace, the input current."""

    observe: Callable[[Tensor], Tensor] | None = None

    def forward(self, *xs: Any) -> Tensor:
        current = self.current(*xs)
        if self.observe is not None:
            current = self.observe(current)
        return self.fire(current)

    def fire(self, current: Tensor) -> Tensor:
        return functional.lif(current, decay=self.decay, v_th=self.v_th, width=self.width)

    def current(self, *xs: Tensor) -> Tensor:
        """The sum of the normalised branches: what the neurons receive."""
        mean, var = self.statistics(*xs)
        current = torch.zeros_like(xs[0])
        for i, x in enumerate(xs):
            current = current + functional.tdbn(
                x,
                self.weight[i],
                self.bias[i],
                alpha=self.branches**-0.5,
                v_th=self.v_th,
                mean=mean[i],
                var=var[i],
                eps=self.eps,
            )
        return current

    def statistics(self, *xs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        if not self.training:
            return list(self.running_mean), list(self.running_var)
        pairs = [functional.moments(x) for x in xs]
        means, variances = [m for m, _ in pairs], [v for _, v in pairs]
        with torch.no_grad():
            self.running_mean.lerp_(torch.stack(means), self.momentum)
            self.running_var.lerp_(torch.stack(variances), self.momentum)
        return means, variances


def observable(network: nn.Module) -> nn.Module:
    """A copy of `network` whose somas are `LawSoma`s with the same parameters and statistics."""
    network = copy.deepcopy(network)
    set_memory(network, "speed")
    for path, soma in [(p, m) for p, m in network.named_modules() if type(m) is Soma]:
        neuron = {key: getattr(soma, key) for key in ("decay", "v_th", "width", "eps", "momentum")}
        law = LawSoma(soma.channels, soma.branches, **neuron).to(soma.weight.device, soma.weight.dtype)
        law.load_state_dict(soma.state_dict())
        network.set_submodule(path, law.train(soma.training))
    return network


def somas(network: nn.Module) -> dict[str, LawSoma]:
    return {name: module for name, module in network.named_modules() if isinstance(module, LawSoma)}


@torch.no_grad()
def settle(network: nn.Module, images: Tensor, timesteps: int) -> None:
    """Make the running statistics of an untrained network those of this batch, so that it can be evaluated."""
    found = [module for module in network.modules() if isinstance(module, Soma)]
    before = [(soma.momentum, soma.training) for soma in found]
    for soma in found:
        soma.momentum = 1.0
        soma.train()
    network(images, timesteps)
    for soma, (momentum, training) in zip(found, before, strict=True):
        soma.momentum = momentum
        soma.train(training)
