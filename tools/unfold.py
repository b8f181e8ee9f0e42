"""Make a run that can be trained again from a folded file whose run is gone.

python -m tools.unfold FILE KEPT OUT --data DATA

Folding multiplies tdBN into the weights (`deploy.folding`), and here it is taken out again: moments are measured on
training images, and weight and bias of tdBN undo them. So the network fires as the file does when it is evaluated, and
nearly so when it is trained, with moments of the batch. KEPT is what `tools.keep` kept of the run: its metrics and
environment.
"""

import argparse
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.data.feed import Feed
from rheobase.deploy.formats import native
from rheobase.deploy.network import Network, Scale, node_name
from rheobase.kernels.fused import statistics
from rheobase.nn import Soma, somas
from rheobase.tasks.open import about
from rheobase.train import checkpoint
from rheobase.train.runs import Run, open_data

BATCHES = 12


@torch.no_grad()
def unfold(network: Network, model: nn.Module, batches: Iterable[Tensor], timesteps: int) -> None:
    """Give `model` the weights with which it fires like `network`, its folded version; `batches` are images."""
    modules: dict[str, Any] = {node_name(path): module for path, module in model.named_modules()}
    shifts = {}
    for path, soma in somas(model).items():
        synapses = [(modules.get(source), network.nodes[source]) for source in network.inputs[node_name(path)]]
        factors = []
        for synapse, node in synapses:
            if isinstance(node, Scale):
                factors.append(node.weight)
            else:
                factors.append(torch.ones_like(soma.weight[0]))
                synapse.weight.copy_(node.weight)
        shifts[path] = sum(node.bias for _, node in synapses if node.bias is not None)
        _set(soma, torch.stack(factors), shifts[path], torch.zeros_like(soma.weight), torch.ones_like(soma.weight))
    last = list(network.nodes)[-1]
    modules[last].load_state_dict(network.nodes[last].state_dict())
    for path, (mean, var) in _moments(model, batches, timesteps).items():
        soma = somas(model)[path]
        _set(soma, _factor(soma), shifts[path], mean.to(soma.weight), var.to(soma.weight))


def _factor(soma: Soma) -> Tensor:
    """By which tdBN multiplies each channel of each branch."""
    return soma.weight * soma.branches**-0.5 * soma.v_th / torch.sqrt(soma.running_var + soma.eps)


def _set(soma: Soma, factor: Tensor, shift: Tensor, mean: Tensor, var: Tensor) -> None:
    """Let tdBN be factor * x for each branch, and shift for all of them together, with these moments."""
    soma.running_mean.copy_(mean)
    soma.running_var.copy_(var)
    soma.weight.copy_(factor * torch.sqrt(var + soma.eps) / (soma.branches**-0.5 * soma.v_th))
    soma.bias.copy_(factor * mean + shift / soma.branches)


def _moments(model: nn.Module, batches: Iterable[Tensor], timesteps: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and biased variance per channel of every branch of every soma, each [n, C], in evaluation mode.

    Batches are of one size.
    """
    found: dict[str, list[tuple[Tensor, Tensor]]] = {path: [] for path in somas(model)}
    handles = [
        soma.register_forward_pre_hook(lambda _, xs, path=path: found[path].append(statistics(list(xs), "cpu")))
        for path, soma in somas(model).items()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    network = native.load(options.file)
    stated = about(network, options.file)
    cpu = torch.device("cpu")
    dataset = open_data(stated.recipe, stated.data, options.data, options.file)
    run = Run.create(options.out, stated.recipe, stated.data, cpu)
    model = run.network()
    feed = Feed(dataset, stated.recipe, cpu, torch.float32)
    unfold(network, model, (x for x, *_ in islice(feed.training(0), BATCHES)), stated.recipe.timesteps)
    for name in ("environment.json", "metrics.jsonl"):
        shutil.copyfile(options.kept / name, run.folder / name)
    checkpoint.save(run.checkpoints, run.rows()[-1]["step"], {"weights": model.state_dict()}, {})
    run.begun()
    print(f"unfolded into {run.folder}")


if __name__ == "__main__":
    main()
