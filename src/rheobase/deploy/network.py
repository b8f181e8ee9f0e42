"""A deployable network: synapses and bare LIF neurons, wired explicitly and without normalisation.

    nodes:  name -> Conv2d, Linear, Scale, AvgPool2d, AdaptiveAvgPool2d(1), Flatten or LIF, in order of execution
    inputs: name -> names of the nodes it reads ("input" is the network's own), whose outputs it sums

The last node yields the logits. Folding, quantising, the files and the simulator are functions over this structure.
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
TOGETHER = 8192  # images times steps that run at once: memory grows with these
State = dict[str, Tensor]  # the potential after reset [N, C, ...] of every layer of neurons


class Left(NamedTuple):
    """What a synapse leaves to the neurons behind it, which multiply and add in one go: vectors [C], or nothing."""

    scale: Tensor | None = None
    bias: Tensor | None = None

    def applied(self, x: Tensor) -> Tensor:
        """To a current [T, N, C, ...]."""
        x = x if self.scale is None else x * per_channel(self.scale, x[0])
        return x if self.bias is None else x + per_channel(self.bias, x[0])


NOTHING = Left()


class Scale(nn.Module):
    """The synapse of an identity shortcut: a weight per channel of x [N, C, ...], and a bias on one branch at most."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x * per_channel(self.weight, x)
        return y if self.bias is None else y + per_channel(self.bias, x)


class LIF(nn.Module):
    """Leaky integrate-and-fire neurons with one threshold per channel.

    The decay, and the `initial` potential that the first step decays, are numbers for all, or vectors [C]. A decay of 1
    is integrate-and-fire. A spike resets the potential to 0 (hard), or lowers it by the threshold (soft).

    With `fraction_bits` all potentials are multiples of 2**-fraction_bits: the decayed one is rounded down, which is a
    shift in integer arithmetic, and a soft reset subtracts the threshold rounded down.
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
                raise ValueError(f"LIF: expected a number as {name}, or {len(v_th)}, got {list(value.shape)}")
        self.fraction_bits, self.reset = fraction_bits, reset

    def step(self, current: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Input current [N, C, ...] and potential after reset -> (spikes, potential after reset)."""
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
        """Currents [T, N, C, ...], or [1, N, C, ...] for the same at every step, summed -> spikes [T, N, C, ...].

        What their synapses have `left` to the neurons is done first.
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
        """On a GPU: nothing here waits for it."""
        dtype = currents[0].dtype
        if len(currents) > kernels.BRANCHES:
            wide = torch.promote_types(dtype, torch.float32)
            currents = [_sum([other.applied(x.to(wide)) for x, other in zip(currents, left, strict=True)])]
            left = [NOTHING]
        biases = [other.bias for other in left if other.bias is not None]
        decay, initial = self.decay, self.initial
        if not isinstance(initial, Tensor) and initial:  # a number would be compiled in, and every layer has its own
            initial = torch.full_like(self.v_th, initial)
        neurons = kernels.BareNeurons(
            scales=[other.scale for other in left],
            bias=_sum(biases) if biases else None,
            v_th=self.v_th,
            decays=decay if isinstance(decay, Tensor) else None,
            initials=initial if isinstance(initial, Tensor) else None,
            decay=0.0 if isinstance(decay, Tensor) else decay,
            reset=self.reset,
            fraction_bits=self.fraction_bits,
        )
        return kernels.integrate(currents, neurons).to(dtype)

    def _fused(self, currents: Sequence[Tensor], scales: Sequence[Tensor | None], v_th: float) -> Tensor:
        """The training kernel, with a normalisation that does no more than scale."""
        if len(currents) > 2:  # more than the kernels of a GPU take
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
        """The potential before the first step."""
        zero = torch.zeros_like(current, dtype=torch.promote_types(current.dtype, torch.float32))
        return zero + _factor(self.initial, current)

    def extra_repr(self) -> str:
        settings = {name: getattr(self, name) for name in ("decay", "fraction_bits", "reset", "initial")}
        return ", ".join(
            [str(len(self.v_th)), *(f"{k}={'[C]' if isinstance(v, Tensor) else v}" for k, v in settings.items())]
        )


NODES = (nn.Conv2d, nn.Linear, Scale, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, LIF)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """`torch.nn.Linear` with these very parameters."""
    layer = nn.Linear(weight.shape[1], len(weight), bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class Network(nn.Module):
    """See the top of the file. Not to be trained: no parameter asks for a gradient.

    A quantised network has units: of its input, which it rounds to at most `input_largest` of them, and of its logits.
    `info` says what the network was
    trained on (plain JSON), and travels with it into files.
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
                raise ValueError(f"node '{name}': the name is that of the network's own input; choose another")
            if not isinstance(node, NODES):
                raise ValueError(f"node '{name}': a {type(node).__name__} cannot be deployed")
            if not sources:
                raise ValueError(f"node '{name}': expected at least one input, got none")
            if len(set(sources)) < len(sources):
                raise ValueError(f"node '{name}': an input that counts twice; put the factor into a synapse of its own")
            for source in sources:
                if source not in known:
                    raise ValueError(f"node '{name}': its input '{source}' is no earlier node")
            known.add(name)
        if not nodes:
            raise ValueError("expected at least one node, got none")
        if len(types := {str(p.dtype).removeprefix("torch.") for p in self.parameters()}) > 1:
            raise ValueError(f"expected weights of one type, got {', '.join(sorted(types))}; convert them first")

    @property
    def integer(self) -> bool:
        """Whether it was quantised."""
        return self.input_unit is not None

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Logits [T, N, K] of images [N, C, H, W] shown for `timesteps` steps, or of a sequence [T, N, C, H, W]."""
        timesteps = functional.check_sequence(x, timesteps)
        few = max(1, TOGETHER // timesteps)
        if x.shape[-4] > few:  # converted networks take hundreds of steps
            return torch.cat([self(part, timesteps) for part in x.split(few, x.ndim - 4)], 1)
        left = self._left_to_neurons(with_biases=kernels.integrates(x))

        def fire(name: str, lif: LIF, currents: list[Tensor]) -> Tensor:
            return lif(currents, timesteps, [left.get(source, NOTHING) for source in self.inputs[name]])

        for _, value in self.walk(x[None] if x.ndim == 4 else x, fire, left):  # noqa: B007 (the last is the result)
            pass
        logits = value.expand(timesteps, *value.shape[1:]).flatten(2)
        return logits if self.logit_unit == 1 else logits * self.logit_unit

    def run(self, x: Tensor, timesteps: int | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every node with its output [T, N, ...] ([1, N, ...] where all steps are equal), in order of execution."""
        timesteps = functional.check_sequence(x, timesteps)
        return self.walk(x[None] if x.ndim == 4 else x, lambda _, lif, currents: lif(currents, timesteps))

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one timestep: x [N, C, H, W] and the state after the last one (None at the start) -> (logits, state)."""
        after: State = {}

        def fire(name: str, lif: LIF, currents: list[Tensor]) -> Tensor:
            current = _sum(currents)[0]
            v = lif.rest(current) if state is None else _of_state(state, name, current.shape)
            s, after[name] = lif.step(current, v)
            return s[None]

        for _, value in self.walk(x[None], fire):  # noqa: B007 (the last one is the result)
            pass
        return value[0].flatten(1) * self.logit_unit, after

    def _left_to_neurons(self, *, with_biases: bool) -> dict[str, Left]:
        """What neurons do for the synapses that only they read.

        They scale for a shortcut. On a GPU they add biases too, for which torch would read and write every current once
        more; a CPU's convolutions add them for free.
        """
        others = {s for name, node in self.nodes.items() if not isinstance(node, LIF) for s in self.inputs[name]}
        others.add(list(self.nodes)[-1])  # which yields the logits
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
        """Every node with its output on a sequence x, without what is `left` to neurons.

        `fire` makes that of neurons from the currents they read.
        """
        last_use = {source: name for name, sources in self.inputs.items() for source in sources}
        x = self.rounded(x).flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])
        values = {INPUT: x}  # channels last: what convolutions prefer, and what they then keep
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
        """The input as the first layer sees it: a quantised network reads multiples of a unit, up to a largest one."""
        if self.input_unit is None:
            return x
        x = x.to(next(self.parameters()).dtype)
        return torch.round(x / self.input_unit).clamp(-self.input_largest, self.input_largest)


def _output(node: nn.Module, x: Tensor, left: Left | None) -> Tensor:
    """Of a node that keeps nothing: all steps of x [T, N, ...] are one batch."""
    if isinstance(node, Scale) and left is not None:
        return x
    if isinstance(node, nn.AvgPool2d) and kernels.integrates(x):  # torch's own is slow there
        return pooled(node, x)
    flat = x.flatten(0, 1)
    if isinstance(node, nn.Conv2d) and left is not None:
        return node._conv_forward(flat, node.weight, None).unflatten(0, x.shape[:2])
    return node(flat).unflatten(0, x.shape[:2])


def _of_state(state: State, name: str, shape: torch.Size) -> Tensor:
    """The potential of that layer; a state of other neurons is refused, broadcasting would hide it."""
    if name not in state:
        raise ValueError(f"the state has no potential of '{name}'; give what the last step of this network returned")
    if state[name].shape != shape:
        raise ValueError(
            f"the state of '{name}' has the shape {list(state[name].shape)}, this step needs {list(shape)}; give what "
            "the last step of the same batch returned, or None to begin anew"
        )
    return state[name]


def node_name(path: str) -> str:
    """The name of the node of the layer at `path` of a model."""
    name = path.replace(".", "_")
    return f"{name}_" if name in (INPUT, OUTPUT) else name


def _sum(values: Sequence[Tensor]) -> Tensor:
    return sum(values[1:], start=values[0])


def _factor(value: float | Tensor, x: Tensor) -> float | Tensor:
    return per_channel(value, x) if isinstance(value, Tensor) else value


def per_channel(p: Tensor, x: Tensor) -> Tensor:
    """A vector [C], shaped to meet x [N, C, ...]."""
    return p.view(-1, *[1] * (x.ndim - 2))
