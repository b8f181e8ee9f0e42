"""Somas: layers of neurons."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import functional, kernels
from rheobase.functional import Moments
from rheobase.nn.convolution import DeferredConv, carried_out
from rheobase.nn.tdbn import TdBN

LEARN_DECAY = ("none", "layer", "channel")
_SETTINGS = (
    "normalize", "decay", "v_th", "width", "surrogate", "reset", "reset_gradient", "learn_decay", "eps", "momentum",
)  # fmt: skip


class Soma(TdBN):
    """A layer of neurons: normalise every incoming branch by tdBN, add them, integrate with a leak and fire.

    Call `soma(x1, x2, ...)` with one synapse output [T, N, C, ...] per branch. It returns spikes of the same shape.
    The number of branches sets alpha = 1/sqrt(branches), and tdBN and the neuron share one v_th. If `normalize` is
    false, the branches are currents already, and the neurons receive their sum.

    Settings of the neuron: `decay` is fixed, or the start of a learnt decay, one per layer or per channel
    (`learn_decay`). `surrogate` is a key of `functional.SURROGATES`. `reset` is hard (to 0) or soft (lower by v_th).
    Gradients flow through the reset unless `reset_gradient` is false. docs/neurons.md has the equations.
    """

    pack = False  # whether synapses keep the spikes as bits; see `set_memory`

    def __init__(
        self,
        channels: int,
        branches: int = 1,
        *,
        normalize: bool = True,
        decay: float = 0.25,
        v_th: float = 0.5,
        width: float = 1.0,
        surrogate: str = "rectangle",
        reset: str = "hard",
        reset_gradient: bool = True,
        learn_decay: str = "none",
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__(channels, branches, v_th=v_th, eps=eps, momentum=momentum)
        if not 0 <= decay <= 1:
            raise ValueError(f"Soma: expected decay between 0 and 1, got {decay}")
        if not width > 0:
            raise ValueError(f"Soma: expected width > 0, got {width}")
        functional.check_choice("surrogate", surrogate, functional.SURROGATES)
        functional.check_choice("reset", reset, functional.RESETS)
        functional.check_choice("learn_decay", learn_decay, LEARN_DECAY)
        if learn_decay != "none" and not 0 < decay < 1:
            raise ValueError(f"Soma: a learnt decay must start between 0 and 1, both excluded, got {decay}")
        self.normalize, self.decay, self.width = normalize, decay, width
        self.surrogate, self.reset, self.reset_gradient = surrogate, reset, reset_gradient
        self.learn_decay = learn_decay
        if not normalize:
            del self.weight, self.bias, self.running_mean, self.running_var
            self.register_buffer("bias", torch.zeros(branches, channels), persistent=False)
        if learn_decay != "none":
            start = torch.full((channels if learn_decay == "channel" else 1,), log(decay / (1 - decay)))
            self.decay_logit = nn.Parameter(start)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.forward is Soma.forward and {"fire", "spike"} & cls.__dict__.keys():
            raise ValueError(
                f"{cls.__name__}: the kernels of Soma do not call fire or spike; derive the class from ReferenceSoma"
            )

    def forward(self, *xs: Tensor | DeferredConv) -> Tensor:
        """Return the spikes of one synapse output per branch."""
        self._check_number(xs)
        weight = self.weight if self.normalize else torch.full_like(self.bias, 1 / self.deviation)
        spikes, (mean, var) = self._fire(xs, weight, self._moments())
        if self.training and self.normalize:
            self._follow(mean, var)
        return spikes

    def present_decay(self) -> float | Tensor:
        """Return the present decay: a number, or, if learnt, a tensor with one value per layer or channel."""
        return self.decay if self.learn_decay == "none" else self.decay_logit.sigmoid()

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make another soma like this one, except channels and branches."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def _fire(
        self, xs: Sequence[Tensor | DeferredConv], weight: Tensor, moments: Moments | None
    ) -> tuple[Tensor, Moments]:
        return kernels.fire(
            xs,
            weight,
            self.bias,
            decay=self.present_decay(),
            v_th=self.v_th,
            width=self.width,
            eps=self.eps,
            surrogate=self.surrogate,
            reset=self.reset,
            reset_gradient=self.reset_gradient,
            moments=moments,
            group=self.group,
            pack=self.pack,
        )

    def _moments(self) -> Moments | None:
        """Return the moments of tdBN. Without normalisation, return moments that change nothing."""
        if self.normalize:
            return super()._moments()
        return torch.zeros_like(self.bias), torch.full_like(self.bias, 1 - self.eps)

    # A checkpoint stores the neuron's settings as a tensor, so that weights cannot be loaded into a different neuron.

    def get_extra_state(self) -> Tensor:
        settings: list[Any] = [self.decay, self.v_th, self.width, self.eps, self.branches]
        settings += [choices.index(getattr(self, name)) for name, choices in _CHOICES.items()]
        return torch.tensor([s.detach() if isinstance(s, Tensor) else s for s in settings], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        names = ("decay", "v_th", "width", "eps", "branches", *_CHOICES)
        saved, own = state.tolist(), self.get_extra_state().tolist()
        saved += [0.0] * (len(own) - len(saved))  # an older checkpoint, from before these settings existed
        different = [
            f"{n} {_shown(n, s)} (here {_shown(n, o)})" for n, s, o in zip(names, saved, own, strict=True) if s != o
        ]
        if different:
            raise ValueError(
                f"Soma: the checkpoint was trained with {', '.join(different)}; build the network with these settings"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, branches={self.branches}, "
            f"{', '.join(f'{name}={value}' for name, value in self.settings.items())}"
        )


# Settings with a fixed set of values, the paper's first. A checkpoint stores the index of the value.
_CHOICES: dict[str, list[Any]] = {
    "surrogate": list(functional.SURROGATES),
    "reset": list(functional.RESETS),
    "reset_gradient": [True, False],
    "learn_decay": list(LEARN_DECAY),
    "normalize": [True, False],
}


def _shown(name: str, value: float) -> str:
    """Return a setting from a checkpoint as text."""
    choices = _CHOICES.get(name, [])
    return str(choices[int(value)]) if 0 <= value < len(choices) else f"{value:g}"


class ReferenceSoma(Soma):
    """A soma on plain tensors, equation by equation. It equals `Soma`, but is slower and can be extended.

    Derive your own neurons from it. Override `spike` to change the surrogate: the spikes do not change, so
    `deploy.fold` supports such a neuron. Override `fire` to change the dynamics:

        class Integrator(ReferenceSoma):
            def fire(self, current: Tensor) -> Tensor:
                return self.spike(current.cumsum(0))

    Normalisation, running statistics, process groups and the number of branches are inherited. Derivatives of any
    order work. Set `observe` to see, or replace, the current before the neurons receive it.
    """

    observe: Callable[[Tensor], Tensor] | None = None

    def forward(self, *xs: Tensor | DeferredConv) -> Tensor:
        self._check_number(xs)
        inputs: list[Tensor] = [carried_out(x) for x in xs]
        functional.check_branches(inputs, self.bias, self.bias, None)
        current = self.current(*inputs)
        if self.observe is not None:
            current = self.observe(current)
        return self.fire(current).to(inputs[0].dtype)

    def fire(self, current: Tensor) -> Tensor:
        """Return the spikes [T, N, C, ...] of neurons that receive `current`, which is at least float32."""
        return functional.lif(
            current,
            decay=self.present_decay(),
            v_th=self.v_th,
            width=self.width,
            reset=self.reset,
            reset_gradient=self.reset_gradient,
            spikes_of=self.spike,
        )

    def spike(self, u: Tensor) -> Tensor:
        """Return 1 where the potential u is above v_th, else 0. Its gradient is the surrogate."""
        return functional.spike(u, v_th=self.v_th, width=self.width, surrogate=self.surrogate)

    def current(self, *xs: Tensor) -> Tensor:
        """Return the sum of the normalised branches, which the neurons receive."""
        inputs = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in xs]
        if not self.normalize:
            return sum(inputs[1:], start=inputs[0])
        mean, var = self._moments() or self._batch_moments(inputs)
        current = torch.zeros_like(inputs[0])
        for i, x in enumerate(inputs):
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


def somas(network: nn.Module) -> dict[str, Soma]:
    """Return the somas of a network by name, in the order in which they were built."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Soma)}


@contextmanager
def watched(
    network: nn.Module, layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None], *, training: bool = False
) -> Iterator[None]:
    """Call `see(name, output)` whenever one of `layers` runs. Put `network` in training or evaluation mode meanwhile.

    At the end, restore the mode of every module.
    """
    handles = [
        layer.register_forward_hook(lambda _, __, out, name=name: see(name, out)) for name, layer in layers.items()
    ]
    modes = {module: module.training for module in network.modules()}
    network.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for handle in handles:
            handle.remove()
