"""Count the additions and multiplications of one inference of a folded network, layer by layer (Table 6).

`report`, `analyze`, `verify` and Table 6 all count in the same way. An input of zero costs nothing, and a weight of
zero is not a synapse. An input of one (a spike, a single event) costs an addition at every synapse that it reaches. Any
other input (a pixel, an average, several events) costs a multiplication; the addition with it is not counted again.
Where spikes are added up, they arrive one by one from their sources, so they cost additions too. Biases and neuron
updates are counted separately. All of this runs in double precision, so that the spikes are the same everywhere.

Two points are conventions, and both are counted either way:
- A layer after average pooling receives averages. It multiplies, or, if the scale of the pooling is folded into its
  weights, it adds once per weight and spike in the window.
- The encoding layer sees the same image at every timestep. It computes at every timestep, as the paper counts, or once.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.deploy.network import INPUT, Network
from rheobase.deploy.nodes import LIF, Scale

IMAGES = 8  # the first test images: enough for three digits, and always the same
MAC_PICOJOULE, ADDITION_PICOJOULE = 4.6, 0.9  # float32 in 45 nm (Horowitz 2014)


@dataclass(frozen=True)
class LayerOperations:
    """The operations of one synapse, per image and over all timesteps."""

    name: str
    fed_by: str
    """"spikes", "averages" (perhaps mixed with spikes), "image", or "current" for anything else."""
    dense: float
    """Multiply-accumulates of all inputs at one timestep, as in a network without spikes."""
    additions: float
    """Caused by inputs that are one."""
    multiplications: float
    """Caused by inputs that are neither zero nor one."""
    from_spikes: float
    """Additions if the pooling before it is folded away. For "spikes", the same as `additions`."""
    bias: float
    """Additions of biases, over all timesteps."""

    @property
    def effective(self) -> float:
        """Products of a weight and an input that are both nonzero."""
        return self.additions + self.multiplications


@dataclass(frozen=True)
class Operations:
    """The operations of a network per image, on average."""

    timesteps: int
    images: int
    repeated: bool
    """Whether all timesteps see the same image."""
    layers: list[LayerOperations]
    neuron_updates: float
    """Decay, add, compare: once per neuron and timestep."""
    activation_sparsity: float
    """Fraction of zeros in the output of the neurons."""
    parameters: int
    connection_sparsity: float
    footprint: int
    """Bytes of weights and thresholds."""

    @property
    def dense(self) -> float:
        """Multiplications per timestep of the same network without spikes."""
        return sum(layer.dense for layer in self.layers)

    @property
    def without_spikes(self) -> float:
        """Multiplications as the paper counts them: all inputs of layers without spike input, at every timestep."""
        return self.timesteps * sum(layer.dense for layer in self.layers if layer.fed_by != "spikes")

    def count(self, *, fold_pooling: bool = False, encode_once: bool = False) -> tuple[float, float]:
        """Return the (additions, multiplications) of the synapses."""
        additions = multiplications = 0.0
        for layer in self.layers:
            if layer.fed_by == "averages" and fold_pooling:
                additions += layer.from_spikes
                continue
            times = 1 / self.timesteps if encode_once and self.repeated and layer.fed_by == "image" else 1
            additions += times * layer.additions
            multiplications += times * layer.multiplications
        return additions, multiplications

    def energy(self, mac: float = MAC_PICOJOULE, addition: float = ADDITION_PICOJOULE) -> float:
        """Return the energy of the synapses in joules, at these picojoules per operation."""
        additions, multiplications = self.count()
        return (additions * addition + multiplications * mac) * 1e-12

    def dense_energy(self, mac: float = MAC_PICOJOULE) -> float:
        """Return the energy of the same network without spikes, in joules."""
        return self.dense * mac * 1e-12

    def neurobench(self) -> dict[str, float]:
        """Return the same quantities under the names of NeuroBench, which never counts zeros."""
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
    """Count the operations for images [N, C, H, W] shown for `timesteps`, or for sequences [T, N, C, H, W]."""
    steps = functional.check_sequence(images, timesteps)
    count = images.shape[-4]
    footprint = sum(t.nbytes for t in (*network.parameters(), *network.buffers()))
    network, images = copy.deepcopy(network).double(), images.double()
    values: dict[str, Tensor] = {INPUT: network.rounded(images[None] if images.ndim == 4 else images)}
    kinds = {INPUT: "image"}
    spikes_in: dict[str, Tensor] = {}  # the spikes that a pooling adds up
    last_use = {source: name for name, sources in network.inputs.items() for source in sources}
    layers = []
    updates = fired = 0.0
    for name, value in network.run(images, timesteps):
        node, sources = network.nodes[name], network.inputs[name]
        fed_by = _together({kinds[source] for source in sources})
        if isinstance(node, LIF):
            kinds[name] = "spikes"
            updates += value[0, 0].numel() * steps
            fired += float(value.double().sum()) / count
        elif isinstance(node, nn.Conv2d | nn.Linear | Scale):
            kinds[name] = "current"
            ones = others = from_spikes = 0.0
            for source in sources:
                x = values[source]
                per_image = steps / len(x) / count  # an input that all timesteps share was computed once
                alone = _products(node, (x == 1).flatten(0, 1)) * per_image
                pooled = spikes_in.get(source)
                ones += alone
                others += _products(node, ((x != 0) & (x != 1)).flatten(0, 1)) * per_image
                from_spikes += alone if pooled is None else _products(node, pooled.flatten(0, 1)) * per_image
            layers.append(
                LayerOperations(
                    name=name,
                    fed_by=fed_by,
                    dense=int((node.weight != 0).sum()) * value[0, 0, 0].numel(),
                    additions=ones,
                    multiplications=others,
                    from_spikes=from_spikes,
                    bias=0.0 if node.bias is None else value[0, 0].numel() * steps,
                )
            )
        else:  # pooling and flattening pass on their input
            kinds[name] = fed_by
            whole = sum(spikes_in.get(source, values[source]) for source in sources)
            assert isinstance(whole, Tensor)
            if isinstance(node, nn.AvgPool2d | nn.AdaptiveAvgPool2d):
                if fed_by == "spikes":
                    kinds[name] = "averages"
                spikes_in[name] = (node(whole.flatten(0, 1)) * _window(node, whole)).unflatten(0, whole.shape[:2])
            elif len(sources) > 1 or sources[0] in spikes_in:
                spikes_in[name] = node(whole.flatten(0, 1)).unflatten(0, value.shape[:2])
        values[name] = value
        for used in network.inputs[name]:
            if last_use[used] == name:
                values.pop(used)
    weights = [p for p in network.parameters() if p.ndim > 1]
    total = sum(p.numel() for p in weights)
    return Operations(
        timesteps=steps,
        images=count,
        repeated=images.ndim == 4,
        layers=layers,
        neuron_updates=updates,
        activation_sparsity=1 - fired / updates if updates else 0.0,
        parameters=sum(p.numel() for p in network.parameters()),
        connection_sparsity=sum(int((p == 0).sum()) for p in weights) / max(1, total),
        footprint=footprint,
    )


def _together(kinds: set[str]) -> str:
    """Return the kind of a sum of inputs of these kinds."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return "averages" if kinds == {"spikes", "averages"} else "current"


def _window(pool: nn.AvgPool2d | nn.AdaptiveAvgPool2d, x: Tensor) -> int:
    """Return the factor that turns an average back into a sum."""
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        return x[0, 0, 0].numel()
    if pool.divisor_override:
        return pool.divisor_override
    size = pool.kernel_size
    return size**2 if isinstance(size, int) else size[0] * size[1]


def _products(node: nn.Module, active: Tensor) -> float:
    """Count the products of nonzero weights with `active` inputs [N, C, ...] (masks, or spike counts)."""
    active = active.double()
    assert isinstance(node.weight, Tensor)
    synapses = (node.weight != 0).double()
    if isinstance(node, nn.Conv2d):
        assert not isinstance(node.padding, str)
        from_each = synapses.unflatten(0, (node.groups, -1)).sum(1)  # from each input to all outputs
        reached = nn.functional.conv2d(active, from_each, None, node.stride, node.padding, node.dilation, node.groups)
        return float(reached.sum())
    if isinstance(node, nn.Linear):
        return float((active @ synapses.T).sum())
    return float((active.flatten(2).sum(2) if active.ndim > 2 else active).sum(0) @ synapses)
