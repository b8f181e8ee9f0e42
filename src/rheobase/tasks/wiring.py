"""The wiring of a deployed network as plain data, for the drawing in a report."""

from typing import Any

import torch
from torch import Tensor, nn

from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF


@torch.no_grad()
def wiring(network: Network, x: Tensor, timesteps: int) -> list[dict[str, Any]]:
    """Return the layers of neurons, and the logits, with their shapes, synapses and the layers that feed them."""
    shapes = {name: list(value.shape[2:]) for name, value in network.run(x, timesteps)}
    last = list(network.nodes)[-1]
    graph = []
    for name, node in network.nodes.items():
        if isinstance(node, LIF) or name == last:
            starts = network.inputs[name] if isinstance(node, LIF) else (name,)
            routes = [route for source in starts for route in _routes(network, source)]
            graph.append({"name": name, "shape": shapes[name], "routes": routes})
    return graph


def _routes(network: Network, name: str, kind: str = "") -> list[dict[str, str]]:
    """Follow a synapse back to all neurons that feed it. Return these, and the kind of the synapse."""
    if name == INPUT or isinstance(network.nodes[name], LIF):
        return [{"source": name, "kind": kind}]
    node = network.nodes[name]
    if not isinstance(node, nn.Flatten):
        kind = f"{_word(node)}{', ' + kind if kind else ''}"
    return [route for source in network.inputs[name] for route in _routes(network, source, kind)]


def _word(node: nn.Module) -> str:
    if isinstance(node, nn.Conv2d):
        stride = f" /{node.stride[0]}" if node.stride[0] > 1 else ""
        return f"conv {'x'.join(map(str, node.kernel_size))}{stride}"
    return {"AvgPool2d": "pool", "AdaptiveAvgPool2d": "pool", "Linear": "fc", "Scale": "scale"}[type(node).__name__]
