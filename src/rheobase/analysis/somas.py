"""Somas on the law, open to observation, and the alternatives to tdBN that the ablation compares.

All of them fit where `nn.Soma` does: `build(name, soma=NoNorm)`.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.nn import Soma


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
                alpha=self.alpha,
                v_th=self.scale,
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

    @property
    def alpha(self) -> float:
        return self.branches**-0.5

    @property
    def scale(self) -> float:
        return self.v_th


class UnitAlpha(LawSoma):
    """alpha = 1 on every branch: two branches sum to twice the variance."""

    @property
    def alpha(self) -> float:
        return 1.0


class UnscaledNorm(LawSoma):
    """Batch normalisation as it is: every branch to N(0, 1), whatever the threshold."""

    @property
    def alpha(self) -> float:
        return 1.0

    @property
    def scale(self) -> float:
        return 1.0


class StepNorm(LawSoma):
    """tdBN with statistics of every timestep by itself; it knows at most `timesteps` of them."""

    step_mean: Tensor
    step_var: Tensor

    def __init__(self, channels: int, branches: int = 1, *, timesteps: int = 4, **neuron: Any) -> None:
        super().__init__(channels, branches, **neuron)
        self.timesteps = timesteps
        self.register_buffer("step_mean", torch.zeros(timesteps, branches, channels))
        self.register_buffer("step_var", torch.ones(timesteps, branches, channels))

    def current(self, *xs: Tensor) -> Tensor:
        if len(xs[0]) > self.timesteps:
            raise ValueError(f"StepNorm: expected at most {self.timesteps} timesteps, got {len(xs[0])}")
        currents = []
        for t in range(len(xs[0])):
            self.running_mean, self.running_var = self.step_mean[t], self.step_var[t]
            currents.append(super().current(*(x[t : t + 1] for x in xs)))
        return torch.cat(currents)


class NoNorm(LawSoma):
    """Synapses feed the neurons as they are; a bias per channel is all there is to learn."""

    def current(self, *xs: Tensor) -> Tensor:
        shape = (-1, *[1] * (xs[0].ndim - 3))
        current = torch.zeros_like(xs[0])
        for x, weight, bias in zip(xs, self.weight, self.bias, strict=True):
            current = current + weight.view(shape) * x + bias.view(shape)
        return current


class NeuNorm(NoNorm):
    """NeuNorm (Wu et al. 2019): a slow mean of the spikes over channels is subtracted from what the next layer sees.

    x[t] = k * x[t-1] + (1 - k) * mean of s[t] over channels; the output is s - factor * x with a learnt factor per
    channel, so it is no longer binary. k = 0.9 and factors that start at 1 are our reading.
    """

    memory = 0.9

    def __init__(self, channels: int, branches: int = 1, **neuron: Any) -> None:
        super().__init__(channels, branches, **neuron)
        self.factor = nn.Parameter(torch.ones(channels))

    def fire(self, current: Tensor) -> Tensor:
        spikes = super().fire(current)
        slow = torch.zeros_like(spikes[0].mean(1, keepdim=True))
        out = []
        for s in spikes:
            slow = self.memory * slow + (1 - self.memory) * s.mean(1, keepdim=True)
            out.append(s - self.factor.view(-1, *[1] * (s.ndim - 2)) * slow)
        return torch.stack(out)


VARIANTS: dict[str, tuple[str, type[Soma]]] = {
    "tdbn": ("tdBN", Soma),
    "step": ("batch norm per timestep", StepNorm),
    "unscaled": ("batch norm without threshold scaling", UnscaledNorm),
    "unit_alpha": ("tdBN with alpha = 1 on both branches", UnitAlpha),
    "neunorm": ("NeuNorm", NeuNorm),
    "none": ("no normalisation", NoNorm),
}


def observable(network: nn.Module) -> nn.Module:
    """A copy of `network` whose somas are `LawSoma`s with the same parameters and statistics."""
    network = copy.deepcopy(network)
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
