"""Fig. 6 and Table 6: spikes per neuron and operations, of a trained run, or of networks at initialisation."""

from dataclasses import asdict
from pathlib import Path

import torch

from rheobase.analysis.activity import LayerActivity, activity
from rheobase.analysis.operations import operations
from rheobase.analysis.somas import settle
from rheobase.deploy import fold
from rheobase.inspection import test_images
from rheobase.models import SpikingNet, build
from rheobase.paper.result import Chart, Result
from rheobase.runs import Run, load_network
from rheobase.shapes import default_input, synapses

TIMESTEPS = 6
NOISE = "noise images, networks at initialisation"
PAPER = {  # additions and multiplications of the SNN, multiplications of the ANN
    "resnet19": (1.8e9, 3.4e7, 2.2e9),
    "resnet34_large": (1.2e10, 1.2e9, 1.4e10),
}


def fig6(*, run: Path | None = None, data: Path | None = None, images: int = 16) -> Result:
    """Average spikes per neuron and layer in one inference."""
    found: dict[str, list[LayerActivity]] = {}
    if run is not None:
        recipe = Run(run).recipe()
        x, _ = test_images(Run(run), data, images)
        found[recipe.network] = activity(load_network(run), [x], recipe.timesteps)
        source = f"{x.shape[-4]} test images of {recipe.data}, trained network, T = {recipe.timesteps}"
    else:
        for name, size in (("resnet19", 32), ("resnet34_large", 64)):
            network, x = _untrained(name, size)
            found[name] = activity(network, [x], TIMESTEPS)
        source = f"{NOISE}, T = {TIMESTEPS}"
    comparison = ["The paper: sparse in every layer, and the rates decrease slowly with depth."]
    for name, layers in found.items():
        half = len(layers) // 2
        early, late = (sum(layer.rate for layer in part) / len(part) for part in (layers[:half], layers[half:]))
        comparison.append(
            f"{name}: {min(layer.rate for layer in layers):.3f} to {max(layer.rate for layer in layers):.3f} spikes "
            f"per neuron and step; {early:.3f} on average in the first half of the layers, {late:.3f} in the second."
        )
    charts = [
        Chart(
            name,
            "layer",
            "spikes per neuron",
            {"": (list(range(1, len(layers) + 1)), [layer.spikes for layer in layers])},
            bars=True,
        )
        for name, layers in found.items()
    ]
    content = {name: [asdict(layer) for layer in layers] for name, layers in found.items()}
    return Result("fig6", "Fig. 6: spikes per neuron", source, content, comparison, charts)


def table6(*, run: Path | None = None, data: Path | None = None, images: int = 8) -> Result:
    """Additions and multiplications of one inference, beside the twin without spikes."""
    if run is not None:
        recipe = Run(run).recipe()
        name, timesteps = recipe.network, recipe.timesteps
        network: SpikingNet = load_network(run)
        x, _ = test_images(Run(run), data, images)
        source = f"{x.shape[-4]} test images of {recipe.data}, trained {name}, T = {timesteps}"
    else:
        name, timesteps = "resnet19", TIMESTEPS
        network, x = _untrained(name, 32)
        source = f"{NOISE}, T = {timesteps}"
    counted = operations(fold(network), x, timesteps if x.ndim == 4 else None)
    additions, multiplications = counted.count()
    folded_additions, folded = counted.count(fold_pooling=True)
    _, once = counted.count(encode_once=True)
    rate = 1 - counted.activation_sparsity
    comparison = [
        f"{name}, T = {timesteps}: {additions:.3g} additions and {multiplications:.3g} multiplications, "
        f"{rate:.3f} spikes per neuron and step; without spikes {counted.dense:.3g} of each."
    ]
    if name in PAPER:
        a, m, dense = PAPER[name]
        comparison.append(
            f"The paper, T = {TIMESTEPS}: {a:.2g} and {m:.2g}; without spikes {dense:.2g}. Its additions are "
            f"{a / (TIMESTEPS * counted.dense):.3f} per connection and step, ours "
            f"{additions / (timesteps * counted.dense):.3f}: the difference is the number of steps and the firing rate."
        )
    comparison += [
        f"Conventions: with the scale of the pooling folded away {folded_additions:.3g} and {folded:.3g}; with the "
        f"encoding layer computed once {once:.3g} multiplications. Not included: "
        f"{sum(layer.bias for layer in counted.layers):.3g} additions of biases, {counted.neuron_updates:.3g} updates "
        "of neurons.",
        f"Energy of the synapses at 4.6 pJ per multiplication with addition and 0.9 pJ per addition (45 nm): "
        f"{1e3 * counted.energy():.3g} mJ, without spikes {1e3 * counted.dense_energy():.3g} mJ. Memory traffic "
        "is left out, and it can outweigh both.",
        *_by_counting(),
    ]
    content = {
        "network": name,
        "timesteps": timesteps,
        **asdict(counted),
        "dense": counted.dense,
        "counts": {
            "as the paper counts": [additions, multiplications],
            "pooling folded away": [folded_additions, folded],
            "encoding layer once": [additions, once],
        },
        "joule": {"snn": counted.energy(), "ann": counted.dense_energy()},
        "neurobench": counted.neurobench(),
    }
    labels = ["additions", "multiplications"]
    series = {name: (labels, [additions, multiplications]), "without spikes": (labels, [counted.dense] * 2)}
    if name in PAPER:
        series[f"the paper, T = {TIMESTEPS}"] = (labels, list(PAPER[name][:2]))
    charts = [Chart("one inference", "", "operations", series, bars=True, log=True)]
    return Result("table6", "Table 6: operations", source, content, comparison, charts)


def _by_counting() -> list[str]:
    """ResNet-34-large from its shapes, at the rate that follows from the paper's own additions."""
    with torch.device("meta"):
        layers = synapses(build("resnet34_large"), default_input("resnet34_large"))
    additions, multiplications, _ = PAPER["resnet34_large"]
    dense = sum(layer.multiplications for layer in layers)
    stem, decode = layers[0].multiplications, layers[-1].multiplications
    spiking = dense - stem - decode
    own = TIMESTEPS * (stem + decode)
    return [
        f"ResNet-34-large by counting: {dense:.3g} multiplications without spikes (the paper 1.4e10). The paper's "
        f"{additions:.2g} additions mean {additions / (TIMESTEPS * spiking):.3f} spikes per connection and step, at "
        f"which we count the same; multiplications are {own:.3g} for the encoding and decoding layers at T = 6. The "
        f"paper's {multiplications:.2g} do not follow from its table: they would fit 5 steps.",
    ]


def _untrained(name: str, size: int, images: int = 2) -> tuple[SpikingNet, torch.Tensor]:
    torch.manual_seed(0)
    network = build(name, image_size=size).eval()
    x = torch.randn(images, 3, size, size)
    settle(network, x, TIMESTEPS)
    return network, x
