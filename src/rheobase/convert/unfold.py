"""Turn a deployed network into one that can be trained again.

Folding multiplies tdBN into the weights (`deploy.folding`). Here tdBN is put back: its moments are measured on images,
and its weight and bias cancel them. So the network fires like the deployed one in evaluation, and nearly so in
training, which uses the moments of the batch.

Somas have the same threshold in all layers and start at 0. So currents are scaled from the threshold of a deployed
layer to that of the soma, and an initial potential is spread over the timesteps (Deng & Gu 2021).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import functional
from rheobase.convert.graph import Synapse, layers_of
from rheobase.deploy.network import Network, node_name
from rheobase.deploy.nodes import LIF, Scale
from rheobase.nn import Soma, somas
from rheobase.nn.convolution import carried_out


@torch.no_grad()
def unfold(network: Network, model: nn.Module, batches: Iterable[Tensor], timesteps: int) -> None:
    """Give `model` the weights with which it fires like `network`. All `batches` of images must have the same size."""
    modules: dict[str, Any] = {node_name(path): module for path, module in model.named_modules()}
    own = somas(model)
    if {node_name(path) for path in own} != {*layers_of(network)}:
        raise ValueError("its layers of neurons differ")
    shifts = {}
    for path, soma in own.items():
        if not soma.normalize:
            raise ValueError(f"{path} does not normalise its input, so tdBN cannot be put back")
        lif = network.nodes[node_name(path)]
        assert isinstance(lif, LIF)
        gain = soma.v_th / lif.v_th
        synapses = [(modules.get(source), network.nodes[source]) for source in network.inputs[node_name(path)]]
        if len(synapses) != soma.branches:
            raise ValueError(f"{path} reads {soma.branches} synapses instead of {len(synapses)}")
        factors, shift = [], torch.zeros_like(lif.v_th) + lif.initial / timesteps
        for synapse, node in synapses:
            assert isinstance(node, Synapse)
            shift = shift if node.bias is None else shift + node.bias
            factors.append(gain * node.weight if isinstance(node, Scale) else gain)
            if not isinstance(node, Scale):
                _copy(path, synapse, node)
        shifts[path] = gain * shift
        _set(soma, torch.stack(factors), shifts[path], torch.zeros_like(soma.weight), torch.ones_like(soma.weight))
    last = list(network.nodes)[-1]
    _copy(last, modules.get(last), network.nodes[last])
    modules[last].load_state_dict(network.nodes[last].state_dict())
    for path, (mean, var) in _moments(model, batches, timesteps).items():
        _set(own[path], _factor(own[path]), shifts[path], mean.to(own[path].weight), var.to(own[path].weight))


def _copy(path: str, synapse: Any, node: Any) -> None:
    own, given = (getattr(getattr(layer, "weight", None), "shape", None) for layer in (synapse, node))
    if own is None or own != given:
        raise ValueError(f"the synapses of {path} differ in shape")
    synapse.weight.copy_(node.weight)


def _factor(soma: Soma) -> Tensor:
    """Return the factor that tdBN applies to each channel of each branch."""
    return soma.weight * soma.branches**-0.5 * soma.v_th / torch.sqrt(soma.running_var + soma.eps)


def _set(soma: Soma, factor: Tensor, shift: Tensor, mean: Tensor, var: Tensor) -> None:
    """Set tdBN with these moments so that it computes factor * x for each branch, plus shift for all of them."""
    soma.running_mean.copy_(mean)
    soma.running_var.copy_(var)
    soma.weight.copy_(factor * torch.sqrt(var + soma.eps) / (soma.branches**-0.5 * soma.v_th))
    soma.bias.copy_(factor * mean + shift / soma.branches)


def _moments(model: nn.Module, batches: Iterable[Tensor], timesteps: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and biased variance per channel of all branches of every soma, each [n, C], in evaluation mode."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {path: [] for path in somas(model)}

    def see(path: str, xs: tuple[Any, ...]) -> None:
        means, variances = zip(*(functional.moments(carried_out(x)) for x in xs), strict=True)
        found[path].append((torch.stack(means), torch.stack(variances)))

    handles = [
        soma.register_forward_pre_hook(lambda _, xs, path=path: see(path, xs)) for path, soma in somas(model).items()
    ]
    model.eval()
    for images in batches:
        model(images, timesteps)
    for handle in handles:
        handle.remove()
    joined = {}
    for path, moments in found.items():
        means, variances = (torch.stack(values).double() for values in zip(*moments, strict=True))
        joined[path] = means.mean(0), (variances + means.square()).mean(0) - means.mean(0).square()
    return joined
