"""Additions and multiplications of one inference, layer by layer, from measured spikes of a folded network (Table 6).

A spike that reaches a synapse costs an addition; a value that is no spike (pixel, average) a multiplication and an
addition. Two points are conventions, and both ways are counted:
- a layer behind average pooling is fed by averages: multiplications as the paper counts, or, with the scale of the
  pooling folded into its weights, one addition per spike in the window and weight;
- the encoding layer sees the same image at every step: computed once, or at every step as the paper counts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.deploy.network import INPUT, LIF, Network, Scale

MAC_PICOJOULE, ADDITION_PICOJOULE = 4.6, 0.9  # float32 in 45 nm (Horowitz 2014)


@dataclass(frozen=True)
class LayerOperations:
    """Of one synapse, per image and over all timesteps."""

    name: str
    fed_by: str
    """"spikes", "averages" or "image"."""
    dense: float
    """Multiply-accumulates if every input counted, at one timestep: what the twin without spikes does."""
    effective: float
    """Multiply-accumulates with inputs that are not zero, over all timesteps."""
    from_spikes: float
    """Additions when a pooling before it is folded away; for "spikes" the same as `effective`."""
    bias: float
    """Additions of biases, over all timesteps."""


@dataclass(frozen=True)
class Operations:
    timesteps: int
    images: int
    layers: list[LayerOperations]
    neuron_updates: float
    """Decay, add, compare: once per neuron and timestep."""
    activation_sparsity: float
    """Share of zeros in the output of the neurons."""
    parameters: int
    connection_sparsity: float
    footprint: int
    """Bytes of weights and thresholds."""

    @property
    def dense(self) -> float:
        return sum(layer.dense for layer in self.layers)

    def count(self, *, fold_pooling: bool = False, encode_once: bool = False) -> tuple[float, float]:
        """(additions, multiplications) of the synapses; a multiplication's own addition is not counted again.

        Values that are no spikes are multiplied whether or not they are zero, as the paper counts.
        """
        additions = multiplications = 0.0
        for layer in self.layers:
            if layer.fed_by == "spikes" or (layer.fed_by == "averages" and fold_pooling):
                additions += layer.from_spikes
            else:
                multiplications += layer.dense * (1 if encode_once and layer.fed_by == "image" else self.timesteps)
        return additions, multiplications

    def energy(self, mac: float = MAC_PICOJOULE, addition: float = ADDITION_PICOJOULE) -> float:
        """Joule of the synapses, at those picojoules."""
        additions, multiplications = self.count()
        return (additions * addition + multiplications * mac) * 1e-12

    def dense_energy(self, mac: float = MAC_PICOJOULE) -> float:
        """Joule of the twin without spikes."""
        return self.dense * mac * 1e-12

    def neurobench(self) -> dict[str, float]:
        """The same quantities under the names of NeuroBench, which leaves out zeros everywhere."""
        return {
            "Effective_MACs": sum(layer.effective for layer in self.layers if layer.fed_by != "spikes"),
            "Effective_ACs": sum(layer.effective for layer in self.layers if layer.fed_by == "spikes"),
            "Dense": self.dense * self.timesteps,
            "ActivationSparsity": self.activation_sparsity,
            "ConnectionSparsity": self.connection_sparsity,
            "ParameterCount": self.parameters,
            "Footprint": self.footprint,
        }


@torch.no_grad()
def operations(network: Network, images: Tensor, timesteps: int | None = None) -> Operations:
    """Of images [N, C, H, W] shown for `timesteps` steps, or of sequences [T, N, C, H, W]."""
    steps = len(images) if timesteps is None else timesteps
    count = images.shape[-4]
    values: dict[str, Tensor] = {INPUT: images[None] if images.ndim == 4 else images}
    kinds = {INPUT: "image"}
    spikes_in: dict[str, Tensor] = {}  # what a pooling has summed up
    last_use = {source: name for name, sources in network.inputs.items() for source in sources}
    layers = []
    updates = fired = 0.0
    for name, value in network.run(images, timesteps):
        node, source = network.nodes[name], network.inputs[name][0]
        x = values[source]
        if isinstance(node, LIF):
            kinds[name] = "spikes"
            updates += value[0, 0].numel() * steps
            fired += float(value.double().sum()) / count
        elif isinstance(node, nn.Conv2d | nn.Linear | Scale):
            kinds[name] = "current"
            per_image = steps / len(x) / count  # a current that all steps share was computed once
            effective = _effective(node, (x != 0).flatten(0, 1)) * per_image
            pooled = spikes_in.get(source)
            layers.append(
                LayerOperations(
                    name=name,
                    fed_by=kinds[source],
                    dense=node.weight.numel() * value[0, 0, 0].numel(),
                    effective=effective,
                    from_spikes=effective if pooled is None else _effective(node, pooled.flatten(0, 1)) * per_image,
                    bias=0.0 if node.bias is None else value[0, 0].numel() * steps,
                )
            )
        else:  # pooling and flattening pass on what feeds them
            kinds[name] = kinds[source]
            if isinstance(node, nn.AvgPool2d | nn.AdaptiveAvgPool2d):
                if kinds[source] == "spikes":
                    kinds[name] = "averages"
                whole = spikes_in.get(source, x).flatten(0, 1)
                spikes_in[name] = (node(whole) * _window(node, x)).unflatten(0, x.shape[:2])
            elif source in spikes_in:
                spikes_in[name] = node(spikes_in[source].flatten(0, 1)).unflatten(0, value.shape[:2])
        values[name] = value
        for used in network.inputs[name]:
            if last_use[used] == name:
                values.pop(used)
    weights = [p for p in network.parameters() if p.ndim > 1]
    total = sum(p.numel() for p in weights)
    return Operations(
        timesteps=steps,
        images=count,
        layers=layers,
        neuron_updates=updates,
        activation_sparsity=1 - fired / updates if updates else 0.0,
        parameters=sum(p.numel() for p in network.parameters()),
        connection_sparsity=sum(int((p == 0).sum()) for p in weights) / total,
        footprint=sum(t.nbytes for t in (*network.parameters(), *network.buffers())),
    )


def _window(pool: nn.AvgPool2d | nn.AdaptiveAvgPool2d, x: Tensor) -> int:
    """What turns an average into the sum that it is made of."""
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        return x[0, 0, 0].numel()
    if pool.divisor_override:
        return pool.divisor_override
    size = pool.kernel_size
    return size**2 if isinstance(size, int) else size[0] * size[1]


def _effective(node: nn.Module, active: Tensor) -> float:
    """Products of a weight with `active` inputs [N, C, ...] (counts of events; masks of ones and zeros)."""
    active = active.double()
    if isinstance(node, nn.Conv2d):
        assert not isinstance(node.padding, str)
        kernel = torch.ones(node.groups, 1, *node.kernel_size, dtype=torch.float64, device=active.device)
        summed = active.unflatten(1, (node.groups, -1)).sum(2)  # over the channels that one output reads
        reached = nn.functional.conv2d(summed, kernel, None, node.stride, node.padding, node.dilation, node.groups)
        return float(reached.sum()) * (node.out_channels // node.groups)
    if isinstance(node, nn.Linear):
        return float(active.sum()) * node.out_features
    return float(active.sum())
