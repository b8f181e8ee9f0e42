"""Fig. 6 and Table 6: spikes per neuron and operations, of a trained run or of networks at initialisation."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rheobase.analysis.activity import LayerActivity, activity
from rheobase.analysis.operations import IMAGES, Operations, operations
from rheobase.analysis.sizes import default_input, synapses
from rheobase.analysis.somas import calibrate_statistics
from rheobase.data.feed import first_images
from rheobase.deploy import fold
from rheobase.models import SpikingNet, build
from rheobase.paper.result import CPU, Result
from rheobase.report.charts import Chart
from rheobase.tasks.open import load_with_spikes, open_trained

TIMESTEPS = 6
BATCH = 64  # images, few enough for any memory
NOISE = "noise images, networks at initialisation"
PAPER = {  # additions and multiplications of the SNN, multiplications of the ANN
    "resnet19": (1.8e9, 3.4e7, 2.2e9),
    "resnet34_large": (1.2e10, 1.2e9, 1.4e10),
}


def fig6(*, run: Path | None = None, data: Path | None = None, images: int = 16, device: torch.device = CPU) -> Result:
    """Measure the mean spikes per neuron in every layer, in one inference."""
    found: dict[str, list[LayerActivity]] = {}
    if run is not None:
        opened = open_trained(run)
        recipe = opened.recipe
        x, _ = first_images(opened.open_data(data), recipe, images, torch.float32)
        batches = (part.to(device) for part in x.split(BATCH, dim=x.ndim - 4))
        found[recipe.network] = activity(load_with_spikes(opened).float().to(device), batches, recipe.timesteps)
        source = f"{x.shape[-4]} test images of {recipe.data}, trained network, T = {recipe.timesteps}"
    else:
        for name, size in (("resnet19", 32), ("resnet34_large", 64)):
            network, x = _untrained(name, size)
            found[name] = activity(network.to(device), [x.to(device)], TIMESTEPS)
        source = f"{NOISE}, T = {TIMESTEPS}"
    comparison = ["The paper: firing is sparse in every layer, and rates decrease slowly with depth."]
    for name, layers in found.items():
        if not layers:
            raise ValueError(f"{run}: its network has no layers of neurons, so there are no spikes")
        rates = [layer.rate for layer in layers]
        line, half = f"{name}: {min(rates):.3f} to {max(rates):.3f} spikes per neuron and timestep", len(rates) // 2
        if half:
            early, late = fmean(rates[:half]), fmean(rates[half:])
            line += f"; on average {early:.3f} in the first half of layers, {late:.3f} in the second"
        comparison.append(f"{line}.")
    content = {name: [asdict(layer) for layer in layers] for name, layers in found.items()}
    return Result("fig6", "Fig. 6: spikes per neuron", source, content, comparison, fig6_charts(content), device)


def fig6_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return a chart for every network of a kept result."""
    return [
        Chart(
            name,
            "layer",
            "spikes per neuron",
            {"": (list(range(1, len(layers) + 1)), [sum(layer["rates"]) for layer in layers])},
            bars=True,
        )
        for name, layers in content.items()
    ]


def table6(
    *, run: Path | None = None, data: Path | None = None, images: int = IMAGES, device: torch.device = CPU
) -> Result:
    """Count the additions and multiplications of one inference, with and without spikes."""
    if run is not None:
        opened = open_trained(run)
        recipe = opened.recipe
        name, timesteps = recipe.network, recipe.timesteps
        network = load_with_spikes(opened).float()
        x, _ = first_images(opened.open_data(data), recipe, images, torch.float32)
        source = f"{x.shape[-4]} test images of {recipe.data}, trained {name}, T = {timesteps}"
    else:
        name, timesteps = "resnet19", TIMESTEPS
        network, x = _untrained(name, 32)
        source = f"{NOISE}, T = {timesteps}"
    counted = operations(fold(network).to(device), x.to(device), timesteps)
    additions, multiplications = counted.count()
    folded_additions, folded = counted.count(fold_pooling=True)
    _, once = counted.count(encode_once=True)
    rate, large = 1 - counted.activation_sparsity, _by_counting()
    comparison = [
        f"{name}, T = {timesteps}: {additions:.3g} additions and {multiplications:.3g} multiplications, "
        f"{rate:.3f} spikes per neuron and timestep; without spikes {counted.dense:.3g} of each."
    ]
    if name in PAPER:
        comparison += beside_the_paper(PAPER[name], counted)
    comparison += [
        f"Other conventions: with the pooling folded into the weights, {folded_additions:.3g} and {folded:.3g}; with "
        f"the encoding layer computed once, {once:.3g} multiplications. Not included: "
        f"{sum(layer.bias for layer in counted.layers):.3g} bias additions, {counted.neuron_updates:.3g} neuron "
        f"updates. The paper also counts zeros in pixels and averages: {counted.without_spikes:.3g} multiplications.",
        f"Energy of the synapses at 4.6 pJ per multiplication with addition and 0.9 pJ per addition (45 nm): "
        f"{1e3 * counted.energy():.3g} mJ, without spikes {1e3 * counted.dense_energy():.3g} mJ. Memory traffic "
        "is not included and can outweigh both.",
        _sentence(large),
    ]
    content = {
        "network": name,
        "timesteps": timesteps,
        **asdict(counted),
        "dense": counted.dense,
        "counts": {
            "inputs that are not zero": [additions, multiplications],
            "as the paper counts": [_by_spikes(counted), counted.without_spikes],
            "pooling folded away": [folded_additions, folded],
            "encoding layer once": [additions, once],
        },
        "joule": {"snn": counted.energy(), "ann": counted.dense_energy()},
        "neurobench": counted.neurobench(),
        "resnet34_large": large,
    }
    return Result("table6", "Table 6: operations", source, content, comparison, table6_charts(content), device)


def table6_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of a kept result. Counts are those of the paper, so that its own can stand beside them."""
    name, dense = content["network"], content["dense"]
    labels = ["additions", "multiplications"]
    series = {
        f"{name}, T = {content['timesteps']}": (labels, content["counts"]["as the paper counts"]),
        "without spikes": (labels, [dense, dense]),
    }
    if name in PAPER:
        series[f"the paper, T = {TIMESTEPS}"] = (labels, list(PAPER[name][:2]))
    return [Chart("one inference, counted as in the paper", "", "operations", series, bars=True)]


def beside_the_paper(paper: tuple[float, float, float], counted: Operations) -> list[str]:
    """Compare with the paper factor by factor: connections for spikes, timesteps, and the fraction that is used."""
    additions, multiplications, dense = paper
    spiking = sum(layer.dense for layer in counted.layers if layer.fed_by == "spikes")
    theirs, ours = additions / (TIMESTEPS * spiking), _by_spikes(counted) / (counted.timesteps * spiking)
    steps = (
        f"Both run at T = {TIMESTEPS}"
        if counted.timesteps == TIMESTEPS
        else f"This run has T = {counted.timesteps} (a factor of {counted.timesteps / TIMESTEPS:.3g})"
    )
    at_six = counted.without_spikes * TIMESTEPS / counted.timesteps
    return [
        f"The paper, T = {TIMESTEPS}: {additions:.2g} and {multiplications:.2g}; without spikes {dense:.2g}. {steps}. "
        f"Spikes can use {spiking:.3g} connections. Per timestep, a fraction of {theirs:.3f} is used in the paper and "
        f"{ours:.3f} here (a factor of {ours / theirs:.3g}). These factors explain the whole difference in additions.",
        f"The paper counts multiplications in layers without spike input, at every timestep, zeros included: "
        f"{at_six:.3g} at T = {TIMESTEPS}, the paper's {multiplications:.2g}"
        + ("." if f"{at_six:.1e}" == f"{multiplications:.1e}" else " do not follow from its table."),
    ]


def _by_spikes(counted: Operations) -> float:
    return sum(layer.additions for layer in counted.layers if layer.fed_by == "spikes")


def _by_counting() -> dict[str, float]:
    """Count ResNet-34-large from its shapes, at the rates that the paper's counts imply for it and for ResNet-19."""
    dense, multiplied, rates = {}, {}, {}
    # fed by pixels or averages; the head of resnet34_large has no hidden layer behind its pooling
    for name, without_spikes in (("resnet19", ("stem", "head.hidden")), ("resnet34_large", ("stem", "head.decode"))):
        with torch.device("meta"):
            layers = {layer.name: layer.multiplications for layer in synapses(build(name), default_input(name))}
        dense[name] = sum(layers.values())
        multiplied[name] = sum(layers[key] for key in without_spikes)
        rates[name] = PAPER[name][0] / (TIMESTEPS * (dense[name] - multiplied[name]))
    large = "resnet34_large"
    additions, multiplications, _ = PAPER[large]
    return {
        "dense": dense[large],
        "rate": rates[large],
        "rate_of_resnet19": rates["resnet19"],
        "additions_at_that_rate": TIMESTEPS * (dense[large] - multiplied[large]) * rates["resnet19"],
        "multiplications": TIMESTEPS * multiplied[large],
        "steps_that_would_fit": multiplications / multiplied[large],
        "paper_additions": additions,
        "paper_multiplications": multiplications,
    }


def _sentence(large: dict[str, float]) -> str:
    return (
        f"ResNet-34-large, counted from its shapes: {large['dense']:.3g} multiplications without spikes (the paper: "
        f"1.4e10). The paper's {large['paper_additions']:.2g} additions imply that a fraction of {large['rate']:.3f} "
        f"of the connections is used per timestep; at the {large['rate_of_resnet19']:.3f} of its ResNet-19, there "
        f"would be {large['additions_at_that_rate']:.3g} additions. The encoding and decoding layers take "
        f"{large['multiplications']:.3g} multiplications at T = {TIMESTEPS}. The paper's "
        f"{large['paper_multiplications']:.2g} do not follow from its table; they would fit "
        f"{large['steps_that_would_fit']:.1f} timesteps."
    )


def _untrained(name: str, size: int, images: int = 2) -> tuple[SpikingNet, torch.Tensor]:
    torch.manual_seed(0)
    network = build(name, image_size=size).eval()
    x = torch.randn(images, 3, size, size)
    calibrate_statistics(network, x, TIMESTEPS)
    return network, x
