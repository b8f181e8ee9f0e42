"""The ReLU network as a graph of synapses and layers, and the spiking network with its thresholds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.folding import fold
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale, linear
from rheobase.nn import QcfsSoma, ReluSoma, Soma

Synapse = nn.Conv2d | nn.Linear | Scale
POOLS = (nn.MaxPool2d, nn.AdaptiveMaxPool2d)


@dataclass(frozen=True)
class Neurons:
    """The integrate-and-fire neurons of one layer. A spike represents the threshold: one number, or one per channel."""

    threshold: float | Tensor
    initial: float | Tensor = 0.0
    """Potential before the first timestep."""

    def __post_init__(self) -> None:
        lowest = float(torch.as_tensor(self.threshold).min())
        if not lowest > 0:
            raise ValueError(f"convert: expected a threshold above 0, got {lowest}")

    def layer(self, like: LIF, reset: str) -> LIF:
        """Return a layer of these neurons, with as many channels as `like`."""
        v_th = torch.zeros_like(like.v_th) + self.threshold
        return LIF(1.0, v_th, reset=reset, initial=self.initial)


@dataclass(frozen=True)
class Choice:
    """The choices of a method for a network."""

    neurons: dict[str, Neurons] = field(default_factory=dict)
    reset: str = "soft"
    shifts: dict[str, Tensor] = field(default_factory=dict)
    """Added to the output [C] of these synapses at every timestep."""


def relu_graph(model: nn.Module) -> Network:
    """Return the synapses of a ReLU network, with normalisation folded in, and a layer in place of every ReLU.

    The layers are `LIF` nodes, which are only placeholders. If the network was trained with qcfs, they have its
    thresholds.
    """
    for path, module in model.named_modules():
        if isinstance(module, POOLS):
            raise ValueError(
                f"convert: {path} ({type(module).__name__}) takes the largest of several inputs, which is impossible "
                "with spikes; train the network with average pooling"
            )
    graph = fold(model, _layer)
    if not any(isinstance(node, LIF) for node in graph.nodes.values()):
        raise ValueError("convert: the network has no layer of ReLUs")
    heights(graph, dict.fromkeys(layers_of(graph), 1.0))  # raises early if something cannot be converted
    return graph


def _layer(path: str, soma: Soma) -> LIF:
    kind: type[Soma] = QcfsSoma if isinstance(soma, QcfsSoma) else ReluSoma
    steps = ("forward", "fire", "current", "deviation")
    if any(getattr(type(soma), name, None) is not getattr(kind, name) for name in steps):
        raise ValueError(
            f"convert: the neurons of {path} ({type(soma).__name__}) are not ReLUs; give a network that was trained "
            "with neuron=relu, or neuron=qcfs, and timesteps=1"
        )
    threshold = float(soma.threshold) if isinstance(soma, QcfsSoma) else 1.0
    return LIF(1.0, torch.full_like(soma.bias[0].detach(), threshold), reset="soft")


def layers_of(graph: Network) -> list[str]:
    """Return the names of the layers of neurons, in order of execution."""
    return [name for name, node in graph.nodes.items() if isinstance(node, LIF)]


def heights(graph: Network, thresholds: Mapping[str, float | Tensor]) -> dict[str, float | Tensor]:
    """Return the activation that a spike in every node's output represents. It is 1 for outputs that are not spikes."""
    found: dict[str, float | Tensor] = {INPUT: 1.0}
    carries: dict[str, set[str]] = {INPUT: set()}  # the layers whose spikes, or averages of them, each node passes on
    for name, node in graph.nodes.items():
        sources = graph.inputs[name]
        arriving = {layer for source in sources for layer in carries[source]}
        if isinstance(node, LIF):
            if arriving:
                raise ValueError(
                    f"convert: '{name}' reads the spikes of '{min(arriving)}' without a synapse in between; add one"
                )
            found[name], carries[name] = thresholds[name], {name}
            continue
        if len(arriving) > 1 or (arriving and INPUT in sources):
            raise ValueError(
                f"convert: '{name}' adds outputs of several layers ({', '.join(sorted(arriving))}), whose spikes stand "
                "for different values; give every shortcut a synapse, as in the paper's blocks"
            )
        is_synapse = isinstance(node, Synapse)
        found[name], carries[name] = (1.0, set()) if is_synapse else (found[sources[0]], arriving)
    return found


def spiking(graph: Network, choice: Choice) -> Network:
    """Return the network of integrate-and-fire neurons. Its synapses multiply spikes by what they represent."""
    height = heights(graph, {name: neurons.threshold for name, neurons in choice.neurons.items()})
    nodes: dict[str, nn.Module] = {}
    for name, node in graph.nodes.items():
        if isinstance(node, LIF):
            nodes[name] = choice.neurons[name].layer(node, choice.reset)
        elif isinstance(node, Synapse):
            nodes[name] = _scaled(node, height[graph.inputs[name][0]], choice.shifts.get(name))
        else:
            nodes[name] = node
    return Network(nodes, graph.inputs, info=graph.info).eval()


def _scaled(node: Synapse, height: float | Tensor, shift: Tensor | None) -> Synapse:
    factor = _of_inputs(height, node) if isinstance(height, Tensor) else height
    weight, bias = node.weight.detach() * factor, None if node.bias is None else node.bias.detach()
    if shift is not None:
        bias = shift if bias is None else bias + shift
    if isinstance(node, nn.Conv2d):
        assert not isinstance(node.padding, str)
        return convolution(weight, bias, node.stride, node.padding, node.dilation, node.groups)
    return linear(weight, bias) if isinstance(node, nn.Linear) else Scale(weight, bias)


def _of_inputs(height: Tensor, node: Synapse) -> Tensor:
    """Return the heights [C] of the input channels, in a shape that broadcasts with the weights that read them."""
    if isinstance(node, Scale):
        return height
    if isinstance(node, nn.Linear):
        return height.repeat_interleave(node.in_features // len(height))  # a channel is flattened into several inputs
    by_group = height.view(node.groups, -1).repeat_interleave(node.out_channels // node.groups, 0)
    return by_group[:, :, None, None]
