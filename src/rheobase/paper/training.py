"""Results that need training: Fig. 2 and the accuracies of Tables 1 to 3. The default is the built-in digits."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from rheobase import recipes, train
from rheobase.analysis.isometry import predicted_phi
from rheobase.analysis.variants import NoNorm
from rheobase.data import Dataset, load
from rheobase.data.feed import Feed
from rheobase.deploy.network import node_name
from rheobase.models import build
from rheobase.nn import Soma
from rheobase.paper import others
from rheobase.paper.isolated import Failure, isolated
from rheobase.paper.result import CPU, Result
from rheobase.recipes import Recipe
from rheobase.report.charts import Chart
from rheobase.tasks.compare import Sizes, data_of
from rheobase.tasks.gradients import GradientNorms, gradient_norms
from rheobase.tasks.open import open_trained
from rheobase.train.runs import Run
from rheobase.train.step import for_device

PRECISION: dict[str, Literal["bf16"]] = {"cuda": "bf16"}
V_TH = 0.5
BATCH = 36  # the paper's, for ResNet-19
PLAIN: dict[str, Any] = {"nesterov": False, "weight_decay": 0.0, "label_smoothing": 0.0}  # SGD as in the paper
PUBLISHED = {  # (data, network, T): top-1 accuracy in percent
    "table1": {
        ("cifar10", "resnet19", 6): 93.16,
        ("cifar10", "resnet19", 4): 92.92,
        ("cifar10", "resnet19", 2): 92.34,
        ("imagenet", "resnet34", 6): 63.72,
        ("imagenet", "resnet50", 6): 64.88,
        ("imagenet", "resnet34_large", 6): 67.05,
    },
    "table2": {("dvsgesture", "resnet17", 40): 96.87},
    "table3": {("dvscifar10", "resnet19", 10): 67.8},
}


def fig2(*, data: Path | None = None, device: torch.device = CPU, timesteps: int = 2) -> Iterator[Result]:
    """Measure gradient norms of the plain network over the first sixth of an epoch, with and without tdBN.

    Yield the result so far as each network finishes.
    """
    settings = [(width, decay, True) for width in (1.0, 0.9) for decay in (0.0, 0.25, 0.5)] + [(1.0, 0.25, False)]
    images(data)  # report problems with the data once, before any process starts
    found: dict[int, GradientNorms | Failure] = {}
    for index, norms in isolated(first_sixth, [(data, device, timesteps, *setting) for setting in settings]):
        found[index] = norms
        yield fig2_of(settings, dict(sorted(found.items())), source(data), device)


def fig2_of(
    settings: list[tuple[float, float, bool]],
    found: dict[int, GradientNorms | Failure],
    source: str,
    device: torch.device,
) -> Result:
    """Return the result so far. `found` maps the index of a setting (width, decay, with tdBN) to its norms."""
    rows, failed = [], []
    for index, norms in found.items():
        width, decay, tdbn = settings[index]
        label = f"{'' if tdbn else 'without tdBN, '}decay {decay:g}, width {width:g}"
        if isinstance(norms, Failure):
            failed.append({"label": label, "reason": norms.reason})
            continue
        ratios = {}
        if tdbn:  # at decay 0 and initialisation, phi is the factor of the squared norm from block to block
            calculated = predicted_phi(width / V_TH) ** ((len(norms.layers) - 1) / 2)
            ratios = {"weight_ratio": norms.ratio, "spike_ratio": norms.spike_ratio, "calculated_ratio": calculated}
        rows.append({"label": label, "decay": decay, "width": width, "tdbn": tdbn, **asdict(norms), **ratios})
    with_tdbn = [row for row in rows if row["tdbn"]]
    comparison = [
        "The paper: norms are level at decay 0 and rise slowly with depth at 0.25 and 0.5, all between 1e-5 and 1e-4 "
        "(the scale depends on the size of the network and cannot be compared).",
        "Here, the ratio of first to last layer of the norm with respect to weights (to spikes): "
        + "; ".join(f"{row['label']}: {row['weight_ratio']:.2f} ({row['spike_ratio']:.2f})" for row in with_tdbn)
        + ". A ratio below 1 means that the gradient shrinks on its way to the input.",
        *_by_width(with_tdbn),
        *(
            f"Without tdBN: {row['weights'][0]:.1g} in the first layer, {row['weights'][-1]:.1g} in the last"
            + (
                ": neurons fall silent within a few layers, and a potential of exactly 0 is on the edge of the window, "
                "where the gradient is 0."
                if not any(row["weights"])
                else "."
            )
            for row in rows
            if not row["tdbn"]
        ),
        *broken(failed),
    ]
    return Result(
        "fig2",
        "Fig. 2: gradient norm per layer, plain network",
        source,
        {"rows": rows, "failed": failed},
        comparison,
        fig2_charts({"rows": rows}),
        device,
        len(settings) - len(found),
    )


def fig2_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return the two charts of a kept result: a colour for every decay. What has no gradient has no line."""
    rows = content["rows"]
    decays = list(dict.fromkeys(row["decay"] for row in rows))
    blocks = list(dict.fromkeys((row["width"], row["tdbn"]) for row in rows))
    looks = {row["label"]: (decays.index(row["decay"]), blocks.index((row["width"], row["tdbn"]))) for row in rows}
    return [
        Chart(
            f"gradient with respect to {what}",
            "layer",
            "mean norm",
            {row["label"]: (list(range(2, 2 + len(row[what]))), row[what]) for row in rows if any(row[what])},
            log=True,
            looks=looks,
        )
        for what in ("weights", "spikes")
    ]


def _by_width(rows: list[dict[str, Any]]) -> list[str]:
    """Say whether gradients grow or shrink, and what Theorem 1 predicts."""
    sentences = []
    for width in dict.fromkeys(row["width"] for row in rows):
        own = [row for row in rows if row["width"] == width]
        ratios = [row["spike_ratio"] for row in own]
        words = {"shrinks" if ratio < 0.8 else "grows" if ratio > 1.25 else "keeps its size" for ratio in ratios}
        sentences.append(
            f"At width {width:g} the gradient {' or '.join(sorted(words))} on its way to the input: "
            f"{min(ratios):.2f} to {max(ratios):.2f} over {len(own[0]['layers'])} layers. Calculated at decay 0, from "
            f"width / v_th alone: {own[0]['calculated_ratio']:.2f}."
        )
    return sentences


def first_sixth(
    data: Path | None, device: torch.device, timesteps: int, width: float, decay: float, tdbn: bool
) -> GradientNorms:
    """Measure the gradient norms of the plain network over the first sixth of an epoch."""
    dataset = images(data)
    recipe = replace(recipe_for(dataset, device), timesteps=timesteps, **PLAIN)
    torch.manual_seed(0)
    network = build(
        "plain20",
        num_classes=len(dataset.info.classes),
        in_channels=dataset.info.channels,
        image_size=dataset.info.size,
        decay=decay,
        v_th=V_TH,
        width=width,
        soma=Soma if tdbn else NoNorm,
    ).to(device, memory_format=torch.channels_last)
    feed = Feed(dataset, recipe, device, torch.float32)
    batches = ((x, y) for x, y, _ in islice(feed.training(0), max(1, feed.steps // 6)))
    return gradient_norms(network, batches, recipe)


def images(data: Path | None) -> Dataset:
    """Load CIFAR-10 from `data`, or the built-in digits."""
    return load("cifar10", data) if data is not None else load("digits")


def source(data: Path | None) -> str:
    """Return the name of these images."""
    return "CIFAR-10" if data is not None else "built-in digits instead of CIFAR-10"


def recipe_for(dataset: Dataset, device: torch.device) -> Recipe:
    """Return the demo recipe with the paper's loss and batch size, and on CIFAR-10 with its augmentation."""
    recipe = replace(
        recipes.get("demo"),
        data=dataset.info.name,
        batch_size=BATCH,
        loss="mean",
        precision=PRECISION.get(device.type, "fp32"),
    )
    if for_device(recipe, device) != recipe:
        recipe = replace(recipe, precision="fp32")
    return recipe if dataset.info.name == "digits" else replace(recipe, padding=4, flip=True)


def broken(failed: list[dict[str, str]]) -> list[str]:
    """Return a sentence for every job that failed."""
    return [f"Did not finish: {one['label']} ({one['reason']})." for one in failed]


def table(name: str, runs: list[Path], *, epochs: int = 3) -> Result:
    """Compare runs with the accuracies of Table 1, 2 or 3. Without runs, train a small network on the digits."""
    published = PUBLISHED[name]
    rows: list[dict[str, Any]] = []
    if runs:
        for folder in runs:
            opened = open_trained(folder)
            recipe, metrics = opened.recipe, opened.rows()
            tested = [row["test_accuracy"] for row in metrics if "test_accuracy" in row]
            if not tested:
                raise ValueError(f"{folder} has no test accuracy yet; let its first evaluation finish")
            key = (recipe.data, recipe.network, recipe.timesteps)
            row = _row(key, published.get(key), 100 * tested[-1], 100 * max(tested), len(metrics))
            about = data_of(opened)
            start = opened.start and opened.start["from"]
            row |= {"planned": recipe.epochs, "start": start, "simulated": about.simulated, "holdout": about.holdout}
            rows.append(row | costs(opened))
        source = "trained runs"
    else:
        rows += [_stand_in(timesteps, epochs) for timesteps in sorted({t for _, _, t in published})]
        source = "built-in digits and a small network instead of the paper's data"
    comparison = [
        f"{row['network']} on {row['data']}, T = {row['timesteps']}: {row['last']:.2f} % after {row['epochs']} of "
        f"{row.get('planned', row['epochs'])} epochs (best epoch {row['best']:.2f} %). The paper "
        + (f"reports {row['paper']:.2f} %." if row["paper"] else "has no number for this.")
        + (f" It started from the weights of {row['start']}." if row.get("start") else "")
        + (
            f" One inference takes {row['additions']:.3g} additions and {row['multiplications']:.3g} multiplications, "
            f"{1e3 * row['joule']:.3g} mJ, at {row['firing_rate']:.3f} spikes per neuron and timestep."
            if None not in (row["joule"], row["firing_rate"])
            else ""
        )
        + (" The recordings are simulated, so this says nothing about real ones." if row.get("simulated") else "")
        + (" It was tested on held-out training images, not on the test images." if row.get("holdout") else "")
        for row in rows
    ]
    missing = [key for key in published if key not in {(r["data"], r["network"], r["timesteps"]) for r in rows}]
    comparison += [
        f"Missing: {network} on {data}, T = {t} (the paper: {published[data, network, t]:.2f} %); train it and give "
        "the run folder."
        for data, network, t in missing
    ]
    comparison += others.sentences(name)
    labels = [f"{row['network']}, {row['data']}, T = {row['timesteps']}" for row in rows]
    series = {"here, last epoch": (labels, [row["last"] for row in rows])}
    if any(row["paper"] for row in rows):
        series["the paper"] = (labels, [row["paper"] or nan for row in rows])
    charts = [Chart("top-1 accuracy", "", "%", series, bars=True)]
    return Result(
        name, f"Table {name[-1]}: accuracy", source, {"rows": rows, "published": others.rows(name)}, comparison, charts
    )


def costs(run: Run) -> dict[str, float | None]:
    """Return firing rate, operations and energy of the last test of a run; None where they are not known."""
    last = [row for row in run.rows() if "test_accuracy" in row][-1]
    rates = {node_name(path): rate for path, rate in last.get("firing_rates", {}).items()}
    return Sizes.of(run).costs(rates, run.recipe.timesteps, last.get("input_rates"))


def _row(key: tuple[str, str, int], paper: float | None, last: float, best: float, epochs: int) -> dict[str, Any]:
    data, network, timesteps = key
    return {
        "data": data, "network": network, "timesteps": timesteps, "epochs": epochs,
        "last": last, "best": best, "paper": paper,
    }  # fmt: skip


def _stand_in(timesteps: int, epochs: int) -> dict[str, Any]:
    recipe = replace(recipes.get("demo"), timesteps=timesteps, epochs=epochs)
    with TemporaryDirectory() as folder:
        run = train.fit(recipe, out=Path(folder) / "run", device="cpu")
        accuracies = [100 * row["test_accuracy"] for row in run.rows()]
        row = _row(("digits", recipe.network, timesteps), None, accuracies[-1], max(accuracies), epochs)
        return row | costs(run)
