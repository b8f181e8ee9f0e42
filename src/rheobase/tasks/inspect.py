"""Inspect a run and return plain data, which `analyze` prints and `report` draws."""

import copy
import shlex
from dataclasses import asdict, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import plugins, recipes
from rheobase.analysis.activity import activity, findings
from rheobase.analysis.distributions import histogram, potentials
from rheobase.analysis.isometry import isometry
from rheobase.analysis.operations import IMAGES, operations
from rheobase.analysis.sizes import build_default, default_input
from rheobase.analysis.somas import calibrate_statistics, on_reference
from rheobase.data import DataInfo
from rheobase.data.feed import first_images
from rheobase.deploy.folding import fires_as_lif, fold
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF
from rheobase.models import MSBlock, SEWBlock, SEWBottleneck, SpikingNet
from rheobase.nn import ReferenceSoma, Soma, somas, watched
from rheobase.recipes import Recipe
from rheobase.tasks.gradients import GradientNorms, gradient_norms, inner_layers
from rheobase.tasks.open import about, input_dtype, load_with_spikes, open_dataset, open_with_spikes
from rheobase.tasks.wiring import wiring
from rheobase.train.runs import Run

BATCH, FEW, SAMPLES, NEURONS = 32, 8, 6, 8


def inspect_run(run: Run, *, data: Path | None = None, images: int = 360) -> dict[str, Any]:
    """Measure the trained network of a run on its first test images."""
    recipe, network = run.recipe, load_with_spikes(run).float()
    dataset = run.open_data(data)
    x, labels = first_images(dataset, recipe, images, torch.float32)
    few, exact = _first(x, FEW), replace(recipe, precision="fp32")
    return {
        "folder": run.folder.name,
        "command": _command(run),
        "environment": run.read("environment.json"),
        "rows": run.rows(),
        **_measured(network, x, labels, recipe, dataset.info),
        "membranes": _membranes(network, few, recipe.timesteps),
        **_deployed(network, _first(x, IMAGES), recipe.timesteps),
        # on a copy, as training mode changes the running statistics
        "gradients": _gradients(copy.deepcopy(network), few, labels[:FEW], exact),
    }


def inspect_file(path: Path, *, data: Path | None = None, images: int = 360) -> dict[str, Any]:
    """Measure a deployed network, which has neither epochs nor gradients, on its first test images."""
    network = open_with_spikes(path, path)
    stated = about(network, path)
    recipe = replace(stated.recipe, precision="fp32")
    x, labels = first_images(open_dataset(path, stated, data), recipe, images, input_dtype(network))
    return {
        "folder": path.name,
        "command": shlex.join(["rheobase", "report", path.name]),
        "environment": network.info.get("converted", {}),
        "rows": None,
        **_measured(network, x, labels, recipe, stated.data),
        "membranes": {},
        **_counted(network, _first(x, IMAGES), recipe.timesteps),
        "gradients": None,
    }


def _measured(network: nn.Module, x: Tensor, labels: Tensor, recipe: Recipe, info: DataInfo) -> dict[str, Any]:
    """Return what a trained and a deployed network have in common."""
    layers = activity(network, _batches(x), recipe.timesteps, _neurons(network))
    logits = _logits(network, x, _longest(recipe.timesteps, x))
    trained = logits[: recipe.timesteps]
    return {
        "recipe": asdict(recipe),
        "simulated": info.simulated,
        "classes": list(info.classes),
        "images": len(labels),
        "confusion": _confusion(trained.mean(0).argmax(1), labels, len(info.classes)),
        "accuracy_by_timesteps": _by_timesteps(logits, labels),
        "layers": [asdict(layer) | {"rate": layer.rate, "spikes": layer.spikes} for layer in layers],
        "findings": findings(layers),
        "samples": _samples(network, x, labels, trained, info, recipe.timesteps),
    }


def _neurons(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of neurons by name: somas, or the neurons of a deployed network."""
    if isinstance(network, Network):
        return {name: node for name, node in network.nodes.items() if isinstance(node, LIF)}
    return dict(somas(network))


def _by_timesteps(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the accuracy within 1, 2, ... timesteps."""
    return [float((logits[:t].mean(0).argmax(1) == labels).double().mean()) for t in range(1, len(logits) + 1)]


def _gradients(network: nn.Module, x: Tensor, labels: Tensor, recipe: Recipe) -> dict[str, Any] | None:
    """Return gradient norms; None for a network without layers between the first and the last."""
    try:
        inner_layers(network)
    except ValueError:
        return None
    return asdict(gradient_norms(network, [(x, labels)], recipe, learn=False))


def _deployed(network: nn.Module, x: Tensor, timesteps: int) -> dict[str, Any]:
    """Return operations and wiring of the folded network; None and the reason if it cannot be folded."""
    try:
        folded = fold(network)
    except ValueError as error:
        return {"operations": None, "graph": None, "not_folded": str(error)}
    return _counted(folded, x, timesteps)


def _counted(folded: Network, x: Tensor, timesteps: int) -> dict[str, Any]:
    counted = operations(folded, x, timesteps)
    additions, multiplications = counted.count()
    done = {
        "images": counted.images,
        "layers": [asdict(layer) for layer in counted.layers],
        "dense": counted.dense,
        "additions": additions,
        "multiplications": multiplications,
        "bias": sum(layer.bias for layer in counted.layers),
        "neuron_updates": counted.neuron_updates,
        "joule": counted.energy(),
        "dense_joule": counted.dense_energy(),
    }
    return {"operations": done, "graph": wiring(folded, x[..., :1, :, :, :], timesteps), "not_folded": None}


def inspect_network(name: str, *, images: int = 8, timesteps: int = 2, probes: int = 2) -> dict[str, Any]:
    """Measure isometry, gradient norms and firing rates of an untrained network on noise: will it train?"""
    torch.manual_seed(0)
    channels, size, _ = default_input(name)
    size = min(size, 64)  # networks for larger images accept any size
    network = build_default(name, max(images, 10), (channels, size, size))
    x, labels = torch.randn(images, channels, size, size), torch.arange(images)
    calibrate_statistics(network, x, timesteps)
    blocks = []
    if isinstance(network, SpikingNet) and _ends_in_somas(network):
        blocks = isometry(network, x, timesteps, probes=probes)
    layers = activity(network, [x], timesteps)
    recipe = Recipe(name=name, data="noise", network=name, timesteps=timesteps, epochs=1, batch_size=images)
    gradients = _gradients(network, x, labels, recipe)
    phis = [sum(e.phi for e in block.steps) / len(block.steps) for block in blocks]
    return {
        "network": name,
        "blocks": [asdict(block) for block in blocks],
        "layers": [asdict(layer) | {"rate": layer.rate} for layer in layers],
        "gradients": gradients,
        "findings": [*findings(layers), *_verdict(phis, gradients)],
    }


def _ends_in_somas(network: SpikingNet) -> bool:
    """Return whether the output of every block comes from one soma, so that gradients can be compared there."""
    return not any(isinstance(block, SEWBlock | SEWBottleneck | MSBlock) for block in network.body)


def _verdict(phis: list[float], gradients: dict[str, Any] | None) -> list[str]:
    sentences = []
    if phis:
        product = torch.tensor(phis).log().sum().exp().item()
        trend = "keeps its size" if 0.1 < product < 10 else "shrinks" if product <= 0.1 else "grows"
        sentences.append(
            f"phi is {min(phis):.2f} to {max(phis):.2f} per block: over {len(phis)} blocks the squared gradient "
            f"{trend} (factor {product:.2g})"
        )
    ratio = nan if gradients is None else GradientNorms(**gradients).spike_ratio
    if isfinite(ratio):  # blocks whose weights start at 0 have no gradients inside
        sentences.append(
            f"the gradient in the first layer is {ratio:.2g} times that in the last: "
            + ("this will train" if 1e-3 < ratio < 1e3 else "this will be hard to train")
        )
    return sentences


def _command(run: Run) -> str:
    """Return a command that trains this run again: a recipe, changed settings, data and plugins."""
    base, *settings = recipes.words(run.recipe)
    words = ["rheobase", "train", base]
    if run.start is not None:
        words += ["--from", str(run.place("start") or run.start["from"])]
    words += settings
    if data := run.place("data"):
        words += ["--data", str(data)]
    loaded = {Path(source).name: source for source in plugins.loaded()}
    for name in dict.fromkeys(origin.name for origin in run.parts.origins().values()):
        words += ["--plugin", name if Path(name).is_file() else loaded.get(name, name)]
    return shlex.join(words)


def _first(x: Tensor, count: int) -> Tensor:
    return x[:count] if x.ndim == 4 else x[:, :count]


def _batches(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(BATCH, dim=x.ndim - 4)


def _longest(timesteps: int, x: Tensor) -> int:
    return min(2 * timesteps, timesteps + 4) if x.ndim == 4 else len(x)


@torch.no_grad()
def _logits(network: nn.Module, x: Tensor, timesteps: int) -> Tensor:
    """Return logits [T, N, K]. The first t timesteps are those of a run with t timesteps, as nothing looks ahead."""
    return torch.cat([network(part, timesteps) for part in _batches(x)], dim=1)


def _confusion(predicted: Tensor, labels: Tensor, classes: int) -> list[list[int]]:
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes).tolist()


@torch.no_grad()
def _membranes(network: nn.Module, x: Tensor, timesteps: int) -> dict[str, Any]:
    """Return a histogram of the potential of every layer of LIF neurons, from -4 to 4 thresholds."""
    law = on_reference(network).eval()
    found: dict[str, Any] = {}

    for name, soma in somas(law).items():
        if not isinstance(soma, ReferenceSoma) or not fires_as_lif(soma):
            continue  # the potential of another kind of neuron is not known here

        def see(current: Tensor, name: str = name, soma: Soma = soma) -> Tensor:
            u = potentials(current, decay=soma.present_decay(), v_th=soma.v_th, reset=soma.reset)
            found[name] = asdict(histogram(u / soma.v_th, -4, 4, bins=40))
            return current

        soma.observe = see
    law(x, timesteps)
    return found


@torch.no_grad()
def _samples(
    network: nn.Module, x: Tensor, labels: Tensor, logits: Tensor, info: DataInfo, timesteps: int
) -> list[dict[str, Any]]:
    """Return a few images with the spikes of some neurons. Up to half of the images are misclassified ones."""
    right = logits.mean(0).argmax(1) == labels
    wrong = (~right).nonzero().flatten()[: SAMPLES // 2].tolist()
    chosen = wrong + right.nonzero().flatten()[: SAMPLES - len(wrong)].tolist()
    spikes: dict[str, Tensor] = {}
    picked = x[chosen] if x.ndim == 4 else x[:, chosen]
    with watched(network, _neurons(network), spikes.__setitem__):
        network(picked, timesteps)
    samples = []
    for i, image in enumerate(chosen):
        raster = {}
        for name, s in spikes.items():
            own = s[:, i].flatten(1)
            raster[name] = own[:, _telling(own)].T.int().tolist()
        samples.append(
            {
                "label": int(labels[image]),
                "probabilities": logits[:, image].mean(0).softmax(0).tolist(),
                "pixels": _pixels(picked[i] if x.ndim == 4 else picked[:, i], info).tolist(),
                "raster": raster,
            }
        )
    return samples


def _pixels(x: Tensor, info: DataInfo) -> Tensor:
    """Return an image, or a sequence [T, C, H, W] as one picture, as bytes [C, H, W].

    Events are counts without a normalisation, mostly small: the busiest cells are the brightest, apart from a few that
    may be defective pixels.
    """
    if x.ndim == 4 and not any(info.mean):
        events = x.sum(0)
        busy = events[events > 0]
        largest = busy.quantile(0.99) if len(busy) else events.new_ones(())
        return (255 * events / largest).round().clamp(0, 255).to(torch.uint8)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    shown = x.mean(0) if x.ndim == 4 else x
    return (shown * std + mean).round().clamp(0, 255).to(torch.uint8)


def _telling(spikes: Tensor) -> Tensor:
    """Choose neurons of spikes [T, n] from the whole layer, preferably those that fire at some timesteps only."""
    rate = spikes.mean(0)
    candidates = ((rate > 0) & (rate < 1)).nonzero().flatten()
    if len(candidates) < NEURONS:
        candidates = rate.argsort(descending=True, stable=True)[:NEURONS]
    places = torch.linspace(0, len(candidates) - 1, min(NEURONS, len(candidates))).round().long()
    return candidates[places]
