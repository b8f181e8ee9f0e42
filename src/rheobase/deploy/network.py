"""A deployable network: synapses and bare LIF neurons with explicit wiring, without normalisation.

    nodes:  name -> Conv2d, Linear, Scale, AvgPool2d, AdaptiveAvgPool2d(1), Flatten or LIF, in order of execution
    inputs: name -> names of the nodes whose outputs it sums ("input" is the input of the network)

The last node computes the logits. Folding, quantising, files and the simulator all work on this structure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rheobase import functional, kernels
from rheobase.deploy.pairs import LARGEST_INPUT
from rheobase.nn.pooling import pooled

INPUT, OUTPUT = "input", "output"  # of the network itself
TOGETHER = 8192  # images times timesteps that run at once; they determine the memory needed
State = dict[str, Tensor]  # the potential after reset [N, C, ...] of every layer of neurons


class Left(NamedTuple):
    """The scale and bias [C] that a synapse leaves to the neurons after it, which apply both in one pass."""

    scale: Tensor | None = None
    bias: Tensor | None = None

    def applied(self, x: Tensor) -> Tensor:
        """Apply both to a current [T, N, C, ...]."""
        x = x if self.scale is None else x * per_channel(self.scale, x[0])
        return x if self.bias is None else x + per_channel(self.bias, x[0])


NOTHING = Left()


class Scale(nn.Module):
    """The synapse of an identity shortcut: one weight per channel of x [N, C, ...], and perhaps a bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x * per_channel(self.weight, x)
        return y if self.bias is None else y + per_channel(self.bias, x)


class LIF(nn.Module):
    """Leaky integrate-and-fire neurons with one threshold per channel.

    `decay` and the `initial` potential before the first timestep are one number, or one per channel [C]. A decay of 1
    means integrate-and-fire. A spike resets the potential to 0 (hard) or lowers it by the threshold (soft).

    With `fraction_bits`, all potentials are multiples of 2**-fraction_bits. The decayed potential is rounded down
    (a shift in integer arithmetic), and a soft reset subtracts the threshold rounded down.
    """

    decay: float | Tensor
    v_th: Tensor
    initial: float | Tensor

    def __init__(
        self,
        decay: float | Tensor,
        v_th: Tensor,
        fraction_bits: int | None = None,
        *,
        reset: str = "hard",
        initial: float | Tensor = 0.0,
    ) -> None:
        super().__init__()
        functional.check_choice("reset", reset, functional.RESETS)
        self.register_buffer("v_th", v_th)
        for name, value in (("decay", decay), ("initial", initial)):
            if not isinstance(value, Tensor):
                setattr(self, name, value)
            elif value.shape == v_th.shape:
                self.register_buffer(name, value)
            else:
                raise ValueError(f"LIF: expected one {name}, or {len(v_th)}, got the shape {list(value.shape)}")
        self.fraction_bits, self.reset = fraction_bits, reset

    def step(self, current: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Run one timestep: current [N, C, ...] and potential after reset -> (spikes, potential after reset)."""
        decay, v_th = _factor(self.decay, current), per_channel(self.v_th, current)
        if self.fraction_bits is None:
            return functional.lif_step(current, v, decay=decay, v_th=v_th, reset=self.reset)
        one = 2.0**self.fraction_bits
        u = torch.floor(decay * v * one) / one + current
        fired = u > v_th
        if self.reset == "hard":
            return fired.to(current.dtype), u.masked_fill(fired, 0.0)
        return fired.to(current.dtype), torch.where(fired, u - torch.floor(v_th * one) / one, u)

    def forward(self, currents: Sequence[Tensor], timesteps: int, left: Sequence[Left] = ()) -> Tensor:
        """Return the spikes [T, N, C, ...] for the sum of the currents [T, N, C, ...].

        A current that is the same at every timestep may be [1, N, C, ...]. `left` is applied first, one per current.
        """
        currents = [x.expand(timesteps, *x.shape[1:]) for x in currents]
        left = left or [NOTHING] * len(currents)
        if kernels.integrates(currents[0]):
            return self._integrated(currents, left)
        low, high = (float(v) for v in self.v_th.aminmax())
        at_rest = not isinstance(self.initial, Tensor) and self.initial == 0  # what the kernels start from
        biased = any(other.bias is not None for other in left)
        if self.fraction_bits is None and at_rest and 0 < low == high and not biased:
            return self._fused(currents, [other.scale for other in left], low)
        currents = [other.applied(x) for x, other in zip(currents, left, strict=True)]
        v = self.rest(currents[0][0])
        spikes = []
        for currents_t in zip(*currents, strict=True):
            s, v = self.step(_sum(currents_t), v)
            spikes.append(s)
        return torch.stack(spikes)

    def _integrated(self, currents: Sequence[Tensor], left: Sequence[Left]) -> Tensor:
        """Fire on a GPU, without waiting for it."""
        dtype = currents[0].dtype
        if len(currents) > kernels.BRANCHES:
            wide = torch.promote_types(dtype, torch.float32)
            currents = [_sum([other.applied(x.to(wide)) for x, other in zip(currents, left, strict=True)])]
            left = [NOTHING]
        biases = [other.bias for other in left if other.bias is not None]
        decay, initial = self.decay, self.initial
        if not isinstance(initial, Tensor) and initial:  # every other number would compile another kernel
            initial = torch.full_like(self.v_th, initial)
        neurons = kernels.BareNeurons(
            scales=[other.scale for other in left],
            bias=_sum(biases) if biases else None,
            v_th=self.v_th,
            decays=decay if isinstance(decay, Tensor) else None,
            initials=initial if isinstance(initial, Tensor) else None,
            decay=0.0 if isinstance(decay, Tensor) else decay,
            initial=0.0 if isinstance(initial, Tensor) else initial,
            reset=self.reset,
            fraction_bits=self.fraction_bits,
        )
        return kernels.integrate(currents, neurons).to(dtype)

    def _fused(self, currents: Sequence[Tensor], scales: Sequence[Tensor | None], v_th: float) -> Tensor:
        """Use the training kernel, with a normalisation that only scales."""
        if len(currents) > 2:  # the kernels of a GPU take at most two
            plain = [x for x, s in zip(currents, scales, strict=True) if s is None]
            scaled = [(x, s) for x, s in zip(currents, scales, strict=True) if s is not None]
            currents = [*([_sum(plain)] if plain else []), *(x for x, _ in scaled)]
            scales = [*([None] if plain else []), *(s for _, s in scaled)]
        n, channels = len(currents), len(self.v_th)
        dtype = torch.promote_types(currents[0].dtype, torch.float32)
        one = torch.ones(n, channels, dtype=dtype, device=currents[0].device)
        zero = torch.zeros_like(one)
        factor = torch.stack([o if s is None else s.to(dtype) for o, s in zip(one, scales, strict=True)])
        factor *= n**0.5 / v_th
        neuron: Any = {"decay": self.decay, "v_th": v_th, "width": 1.0, "reset": self.reset}
        spikes, _ = kernels.fire(currents, factor, zero, **neuron, eps=0.0, moments=(zero, one))
        return spikes

    def rest(self, current: Tensor) -> Tensor:
        """Return the potential before the first timestep."""
        zero = torch.zeros_like(current, dtype=torch.promote_types(current.dtype, torch.float32))
        return zero + _factor(self.initial, current)

    def extra_repr(self) -> str:
        settings = {name: getattr(self, name) for name in ("decay", "fraction_bits", "reset", "initial")}
        return ", ".join(
            [str(len(self.v_th)), *(f"{k}={'[C]' if isinstance(v, Tensor) else v}" for k, v in settings.items())]
        )


NODES = (nn.Conv2d, nn.Linear, Scale, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, LIF)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a `torch.nn.Linear` that uses these parameters without copying them."""
    layer = nn.Linear(weight.shape[1], len(weight), bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class Network(nn.Module):
    """A network of synapses and LIF neurons. It cannot be trained: no parameter requires a gradient.

    `nodes` maps names to layers, in order of execution. `inputs` maps each name to the nodes whose outputs it sums. A
    quantised network has an `input_unit` and a `logit_unit`, and rounds its input to at most `input_largest` units.
    `info` says what the network was trained on (plain JSON). Files keep it.
    """

    def __init__(
        self,
        nodes: Mapping[str, nn.Module],
        inputs: Mapping[str, Sequence[str]],
        *,
        input_unit: float | None = None,
        input_largest: int = LARGEST_INPUT,
        logit_unit: float = 1.0,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.nodes = nn.ModuleDict(nodes)
        self.inputs = {name: tuple(inputs[name]) for name in nodes}
        self.input_unit, self.input_largest, self.logit_unit = input_unit, input_largest, logit_unit
        self.info = dict(info or {})
        known = {INPUT}
        for name, node in nodes.items():
            sources = self.inputs[name]
            if name == INPUT:
                raise ValueError(f"node '{name}': this is the name of the network's input; choose another name")
            if not isinstance(node, NODES):
                raise ValueError(f"node '{name}': a {type(node).__name__} cannot be deployed")
            if not sources:
                raise ValueError(f"node '{name}': expected at least one input, got none")
            if len(set(sources)) < len(sources):
                raise ValueError(f"node '{name}': it has the same input twice; double it in a synapse of its own")
            for source in sources:
                if source not in known:
                    raise ValueError(f"node '{name}': its input '{source}' is not an earlier node")
            known.add(name)
        if not nodes:
            raise ValueError("expected at least one node, got none")
        if len(types := {str(p.dtype).removeprefix("torch.") for p in self.parameters()}) > 1:
            raise ValueError(f"expected weights of one type, got {', '.join(sorted(types))}; convert them first")

    @property
    def integer(self) -> bool:
        """Whether the network is quantised."""
        return self.input_unit is not None

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Return the logits [T, N, K] of images [N, C, H, W] with `timesteps`, or of a sequence [T, N, C, H, W]."""
        timesteps = functional.check_sequence(x, timesteps)
        few = max(1, TOGETHER // timesteps)
        if x.shape[-4] > few:  # converted networks run for hundreds of timesteps
            return torch.cat([self(part, timesteps) for part in x.split(few, x.ndim - 4)], 1)
        left = self._left_to_neurons(with_biases=kernels.integrates(x))

        def fire(name: str, lif: LIF, currents: list[Tensor]) -> Tensor:
            return lif(currents, timesteps, [left.get(source, NOTHING) for source in self.inputs[name]])

        for _, value in self.walk(x[None] if x.ndim == 4 else x, fire, left):  # noqa: B007 (the last one is the result)
            pass
        logits = value.expand(timesteps, *value.shape[1:]).flatten(2)
        return logits if self.logit_unit == 1 else logits * self.logit_unit

    def run(self, x: Tensor, timesteps: int | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield every node and its output [T, N, ...], or [1, N, ...] if all timesteps are equal, in order."""
        timesteps = functional.check_sequence(x, timesteps)
        return self.walk(x[None] if x.ndim == 4 else x, lambda _, lif, currents: lif(currents, timesteps))

    def step(
        self, x: Tensor, state: State | None = None, see: Callable[[str, Tensor], None] | None = None
    ) -> tuple[Tensor, State]:
        """Run one timestep: x [N, C, H, W] and the state after the last one (None at the start) -> (logits, state).

        `see` is called with the name and the spikes [N, C, ...] of every layer of neurons.
        """
        after: State = {}

        def fire(name: str, lif: LIF, currents: list[Tensor]) -> Tensor:
            current = _sum(currents)[0]
            v = lif.rest(current) if state is None else _of_state(state, name, current.shape)
            s, after[name] = lif.step(current, v)
            if see is not None:
                see(name, s)
            return s[None]

        for _, value in self.walk(x[None], fire):  # noqa: B007 (the last one is the result)
            pass
        return value[0].flatten(1) * self.logit_unit, after

    def _left_to_neurons(self, *, with_biases: bool) -> dict[str, Left]:
        """Return the scales and biases that neurons apply for synapses that only neurons read.

        These are the scales of shortcuts. On a GPU they are biases too: torch would read and write every current once
        more to add one. On a CPU, convolutions add biases for free.
        """
        others = {s for name, node in self.nodes.items() if not isinstance(node, LIF) for s in self.inputs[name]}
        others.add(list(self.nodes)[-1])  # computes the logits
        left = {}
        for name, node in self.nodes.items():
            if name in others:
                continue
            if isinstance(node, Scale) and (with_biases or node.bias is None):
                left[name] = Left(node.weight, node.bias)
            elif isinstance(node, nn.Conv2d) and with_biases and node.bias is not None:
                left[name] = Left(bias=node.bias)
        return left

    def walk(
        self,
        x: Tensor,
        fire: Callable[[str, LIF, list[Tensor]], Tensor],
        left: Mapping[str, Left] = MappingProxyType({}),
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield every node and its output on a sequence x. Synapses do not apply what is `left` to the neurons.

        `fire` computes the spikes of a layer of neurons from its name, the layer and its currents.
        """
        last_use = {source: name for name, sources in self.inputs.items() for source in sources}
        x = self.rounded(x).flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])
        values = {INPUT: x}  # channels last: convolutions prefer this order and keep it
        for name, node in self.nodes.items():
            sources = [values[source] for source in self.inputs[name]]
            if isinstance(node, LIF):
                values[name] = fire(name, node, sources)
            else:
                values[name] = _output(node, _sum(sources), left.get(name))
            yield name, values[name]
            for source in self.inputs[name]:
                if last_use[source] == name:
                    values.pop(source, None)

    def rounded(self, x: Tensor) -> Tensor:
        """Return the input as the first layer sees it. A quantised network rounds it to whole units and clips it."""
        if self.input_unit is None:
            return x
        x = x.to(next(self.parameters()).dtype)
        return torch.round(x / self.input_unit).clamp(-self.input_largest, self.input_largest)


def _output(node: nn.Module, x: Tensor, left: Left | None) -> Tensor:
    """Return the output of a node without state. All timesteps of x [T, N, ...] are one batch."""
    if isinstance(node, Scale) and left is not None:
        return x
    if isinstance(node, nn.AvgPool2d) and kernels.integrates(x):  # torch's own pooling is slow on a GPU
        return pooled(node, x)
    flat = x.flatten(0, 1)
    if isinstance(node, nn.Conv2d) and left is not None:
        return node._conv_forward(flat, node.weight, None).unflatten(0, x.shape[:2])
    return node(flat).unflatten(0, x.shape[:2])


def _of_state(state: State, name: str, shape: torch.Size) -> Tensor:
    """Return the potential of this layer. Raise a ValueError if the shape is wrong, which broadcasting would hide."""
    if name not in state:
        raise ValueError(f"the state has no potential of '{name}'; give the state that this network returned last")
    if state[name].shape != shape:
        raise ValueError(
            f"the state of '{name}' has the shape {list(state[name].shape)}, but this step needs {list(shape)}; give "
            "the state that the last step of the same batch returned, or None to start again"
        )
    return state[name]


def node_name(path: str) -> str:
    """Return the name of the node for the layer at `path` of a model."""
    name = path.replace(".", "_")
    return f"{name}_" if name in (INPUT, OUTPUT) else name


def _sum(values: Sequence[Tensor]) -> Tensor:
    return sum(values[1:], start=values[0])


def _factor(value: float | Tensor, x: Tensor) -> float | Tensor:
    return per_channel(value, x) if isinstance(value, Tensor) else value


def per_channel(p: Tensor, x: Tensor) -> Tensor:
    """Return a vector [C] in a shape that broadcasts with x [N, C, ...]."""
    return p.view(-1, *[1] * (x.ndim - 2))
