"""What trains: Fig. 2, the accuracies of Tables 1 to 3, the ablation; on the embedded digits unless told otherwise."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from rheobase import recipes, train
from rheobase.analysis.gradients import gradient_norms
from rheobase.analysis.somas import VARIANTS, NoNorm, StepNorm
from rheobase.data import Dataset, load
from rheobase.data.feed import Feed
from rheobase.models import BasicBlock, PlainBlock, SomaFactory, SpikingNet, build
from rheobase.nn import Conv2d, Soma
from rheobase.paper.result import Chart, Result
from rheobase.recipes import Recipe
from rheobase.runs import Run
from rheobase.step import make_optimizer, make_step

BATCH = 36  # of the paper, for ResNet-19
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


def fig2(*, data: Path | None = None, timesteps: int = 2) -> Result:
    """Gradient norms of the plain network over the first sixth of an epoch, with and without tdBN."""
    dataset, source = _images(data)
    settings: list[tuple[str, float, float, SomaFactory]] = [
        (f"decay {decay:g}, width {width:g}", decay, width, Soma) for width in (1.0, 0.9) for decay in (0.0, 0.25, 0.5)
    ]
    settings.append(("without tdBN, decay 0.25, width 1", 0.25, 1.0, NoNorm))
    rows = []
    for label, decay, width, soma in settings:
        torch.manual_seed(0)
        network = build(
            "plain20",
            num_classes=len(dataset.classes),
            in_channels=dataset.channels,
            image_size=dataset.size,
            decay=decay,
            width=width,
            soma=soma,
        )
        found = gradient_norms(network, _first_sixth(dataset), timesteps)
        row = {"label": label, "decay": decay, "width": width, "tdbn": soma is Soma, **asdict(found)}
        rows.append(row | {"weight_ratio": found.ratio, "spike_ratio": found.spike_ratio})
    with_tdbn = [row for row in rows if row["tdbn"]]
    comparison = [
        "The paper: level at decay 0, rising slowly with depth at 0.25 and 0.5, all within 1e-5 to 1e-4 (its scale "
        "depends on the size of the network and is not comparable).",
        "Here, first layer / last layer of the norm with respect to weights (with respect to spikes): "
        + "; ".join(f"{row['label']}: {row['weight_ratio']:.2f} ({row['spike_ratio']:.2f})" for row in with_tdbn)
        + ". A ratio below 1 is a gradient that shrinks on its way to the input.",
        f"Without tdBN: {rows[-1]['weights'][0]:.1g} in the first layer, {rows[-1]['weights'][-1]:.1g} in the last: "
        "neurons fall silent within a few layers, and a potential of exactly 0 lies on the edge of the window, where "
        "the gradient is 0.",
    ]
    charts = [
        Chart(
            f"gradient with respect to {what}",
            "layer",
            "mean norm",
            {row["label"]: (list(range(2, 19)), row[what]) for row in rows if any(row[what])},
            log=True,
        )
        for what in ("weights", "spikes")
    ]
    return Result("fig2", "Fig. 2: gradient norm per layer, plain network", source, {"rows": rows}, comparison, charts)


def table(name: str, runs: list[Path]) -> Result:
    """Accuracies of Table 1, 2 or 3 beside those of finished runs; without any, of a small network on the digits."""
    published = PUBLISHED[name]
    rows: list[dict[str, Any]] = []
    if runs:
        for folder in runs:
            recipe, metrics = Run(folder).recipe(), Run(folder).rows()
            tested = [row["test_accuracy"] for row in metrics if "test_accuracy" in row]
            if not tested:
                raise ValueError(f"{folder} has no test accuracy yet; let its first evaluation finish")
            key = (recipe.data, recipe.network, recipe.timesteps)
            rows.append(_row(key, published.get(key), 100 * tested[-1], 100 * max(tested), len(metrics)))
        source = "trained runs"
    else:
        rows += [_stand_in(timesteps) for timesteps in sorted({t for _, _, t in published})]
        source = "embedded digits and a small network, instead of the paper's data"
    comparison = [
        f"{row['network']} on {row['data']}, T = {row['timesteps']}: {row['last']:.2f} % after the last of "
        f"{row['epochs']} epochs (best epoch {row['best']:.2f} %), the paper "
        + (f"{row['paper']:.2f} %." if row["paper"] else "has no such number.")
        for row in rows
    ]
    missing = [key for key in published if key not in {(r["data"], r["network"], r["timesteps"]) for r in rows}]
    comparison += [
        f"Not here: {network} on {data}, T = {t} (the paper: {published[data, network, t]:.2f} %); train it, and give "
        "the folder of the run."
        for data, network, t in missing
    ]
    labels = [f"{row['network']}, {row['data']}, T = {row['timesteps']}" for row in rows]
    series = {"here, last epoch": (labels, [row["last"] for row in rows])}
    if any(row["paper"] for row in rows):
        series["the paper"] = (labels, [row["paper"] or 0.0 for row in rows])
    charts = [Chart("top-1 accuracy", "", "%", series, bars=True)]
    return Result(name, f"Table {name[-1]}: accuracy", source, {"rows": rows}, comparison, charts)


def _row(key: tuple[str, str, int], paper: float | None, last: float, best: float, epochs: int) -> dict[str, Any]:
    data, network, timesteps = key
    return {
        "data": data, "network": network, "timesteps": timesteps, "epochs": epochs,
        "last": last, "best": best, "paper": paper,
    }  # fmt: skip


def _stand_in(timesteps: int, epochs: int = 3) -> dict[str, Any]:
    recipe = replace(recipes.get("demo"), timesteps=timesteps, epochs=epochs)
    with TemporaryDirectory() as folder:
        rows = train.fit(recipe, out=Path(folder) / "run", device="cpu").rows()
    accuracies = [100 * row["test_accuracy"] for row in rows]
    return _row(("digits", recipe.network, timesteps), None, accuracies[-1], max(accuracies), epochs)


@dataclass(frozen=True)
class _Trial:
    group: str
    label: str
    depth: int
    block: type[PlainBlock] | type[BasicBlock] = BasicBlock
    soma: SomaFactory = Soma
    decay: float = 0.25
    ratio: float = 2.0


def _trials(timesteps: int) -> list[_Trial]:
    trials = [
        _Trial("normalisation", label, 20, soma=partial(StepNorm, timesteps=timesteps) if soma is StepNorm else soma)
        for label, soma in VARIANTS.values()
    ]
    for block, kind in ((BasicBlock, "residual"), (PlainBlock, "plain")):
        trials += [_Trial("depth", f"{kind}, {depth} layers", depth, block) for depth in (8, 20, 34, 50)]
    trials += [_Trial("decay", f"decay {decay:g}", 20, decay=decay) for decay in (0.0, 0.25, 0.5)]
    trials += [_Trial("width / v_th", f"width = {r:g} v_th", 20, ratio=r) for r in (1.0, 1.8, 2.0, 3.0)]
    return trials


def ablation(*, data: Path | None = None, epochs: int = 8, timesteps: int = 2, channels: int = 16) -> Result:
    """Why tdBN works: other normalisations, alphas, depths, decays and windows, trained alike and briefly."""
    dataset, source = _images(data)
    recipe = replace(
        recipes.get("demo"),
        data=dataset.name,
        timesteps=timesteps,
        epochs=epochs,
        batch_size=BATCH,
        loss="mean",
        flip=dataset.name != "digits",
    )
    device = train.choose_device("auto")
    rows: list[dict[str, Any]] = []
    for trial in _trials(timesteps):
        accuracy, loss = _train(trial, dataset, recipe, channels, device)
        rows.append({"group": trial.group, "label": trial.label, "accuracy": 100 * accuracy, "loss": loss})
    by = {row["label"]: row["accuracy"] for row in rows}
    comparison = [
        f"{epochs} epochs of networks {channels} channels wide, T = {timesteps}; one seed, so differences of a few "
        "points mean little.",
        *(
            f"{group}: " + ", ".join(f"{row['label']} {row['accuracy']:.1f} %" for row in rows if row["group"] == group)
            for group in dict.fromkeys(row["group"] for row in rows)
        ),
        f"The paper's claim, trainable at 50 layers: {by['residual, 50 layers']:.1f} % with shortcuts, "
        f"{by['plain, 50 layers']:.1f} % without.",
    ]
    charts = [
        Chart(
            group,
            "",
            "test accuracy, %",
            {
                "accuracy": (
                    [row["label"] for row in rows if row["group"] == group],
                    [row["accuracy"] for row in rows if row["group"] == group],
                )
            },
            bars=True,
        )
        for group in dict.fromkeys(row["group"] for row in rows)
    ]
    setting = {"epochs": epochs, "timesteps": timesteps, "channels": channels}
    return Result("ablation", "Ablation", source, {"setting": setting, "rows": rows}, comparison, charts)


def _train(trial: _Trial, dataset: Dataset, recipe: Recipe, channels: int, device: torch.device) -> tuple[float, float]:
    torch.manual_seed(0)
    per_block = 2 if trial.block is BasicBlock else 1
    count = (trial.depth - 2) // per_block  # between the encoding and the decoding layer
    sizes = [count - 2 * (count // 3), count // 3, count // 3]
    network = SpikingNet(
        stem=Conv2d(dataset.channels, channels, 3, padding=1, bias=False),
        stages=[(trial.block, channels * 2**i, n, 1 if i == 0 else 2) for i, n in enumerate(sizes)],
        global_pool=True,
        num_classes=len(dataset.classes),
        image_size=dataset.size,
        soma=partial(trial.soma, decay=trial.decay, width=trial.ratio * recipe.v_th),
        memory="speed",
    ).to(device)
    feed = Feed(dataset, recipe, device, torch.float32)
    optimizer = make_optimizer(network, recipe, device)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    step = make_step(network, optimizer, scaler, recipe, recipe.timesteps)
    network.train()
    for epoch in range(recipe.epochs):
        for images, labels, _ in feed.training(epoch):
            step(images, labels)
    found = train.evaluate(network, feed, recipe)
    return found.accuracy, found.loss


def _images(data: Path | None) -> tuple[Dataset, str]:
    if data is not None:
        return load("cifar10", data), "CIFAR-10"
    return load("digits"), "embedded digits instead of CIFAR-10"


def _first_sixth(dataset: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    recipe = replace(recipes.get("demo"), data=dataset.name, batch_size=BATCH)
    feed = Feed(dataset, recipe, torch.device("cpu"), torch.float32)
    for images, labels, _ in islice(feed.training(0), max(1, feed.steps // 6)):
        yield images, labels
