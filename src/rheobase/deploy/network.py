"""A deployable network: synapses and bare LIF neurons with explicit wiring, without normalisation.

    nodes:  name -> Conv2d, Linear, Scale, AvgPool2d, AdaptiveAvgPool2d(1), Flatten or LIF, in order of execution
    inputs: name -> names of the nodes whose outputs it sums ("input" is the input of the network)

The last node computes the logits. Folding, quantising, files and the simulator all work on this structure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import functional, kernels
from rheobase.deploy.nodes import LIF, NODES, NOTHING, Left, Scale, total
from rheobase.deploy.pairs import LARGEST_INPUT
from rheobase.nn.pooling import pooled

INPUT, OUTPUT = "input", "output"  # of the network itself
TOGETHER = 8192  # images times timesteps that run at once; they determine the memory needed
State = dict[str, Tensor]  # the potential after reset [N, C, ...] of every layer of neurons


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

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one timestep: x [N, C, H, W] and the state after the last one (None at the start) -> (logits, state)."""
        after: State = {}

        def fire(name: str, lif: LIF, currents: list[Tensor]) -> Tensor:
            current = total(currents)[0]
            v = lif.rest(current) if state is None else _of_state(state, name, current.shape)
            s, after[name] = lif.step(current, v)
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
                values[name] = _output(node, total(sources), left.get(name))
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
    if isinstance(node, nn.Conv2d) and flat.shape[1] != node.in_channels:
        raise ValueError(f"expected {node.in_channels} channels, got {flat.shape[1]} in input {list(flat.shape)}")
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
