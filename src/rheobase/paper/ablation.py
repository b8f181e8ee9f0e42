"""Ablation of tdBN: other normalisations, alphas, depths, decays and windows, each trained briefly in the same way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rheobase import train
from rheobase.analysis.variants import VARIANTS, StepNorm
from rheobase.models import BasicBlock, GlobalHead, PlainBlock, SomaFactory, SpikingNet
from rheobase.nn import Conv2d
from rheobase.paper.isolated import Failure, isolated
from rheobase.paper.result import CPU, Result
from rheobase.paper.training import broken, images, recipe_for, source
from rheobase.report.charts import Chart

CIFAR_BATCH = 250  # divides the training images evenly, so that all steps use the CUDA graph


@dataclass(frozen=True)
class Variant:
    """A network of the ablation. It differs from the base network in one point."""

    depth: int = 20
    residual: bool = True
    norm: str = "tdbn"
    decay: float = 0.25
    ratio: float = 2.0
    """width / v_th."""


@dataclass(frozen=True)
class Setting:
    """What all networks of an ablation share."""

    data: Path | None
    device: torch.device
    epochs: int
    timesteps: int
    channels: int
    """Channels of the first of three stages. Each later stage has twice as many as the one before."""


def variants() -> list[tuple[str, str, Variant]]:
    """Return group, label and network of every row. Some rows share a network."""
    rows = [("normalisation", label, Variant(norm=norm)) for norm, (label, _) in VARIANTS.items()]
    for residual, kind in ((True, "residual"), (False, "plain")):
        rows += [("depth", f"{kind}, {n} layers", Variant(n, residual)) for n in (8, 20, 34, 50)]
    rows += [("decay", f"decay {decay:g}", Variant(decay=decay)) for decay in (0.0, 0.25, 0.5)]
    rows += [("width / v_th", f"width = {r:g} v_th", Variant(ratio=r)) for r in (1.0, 1.8, 2.0, 3.0)]
    return rows


def ablation(
    *,
    data: Path | None = None,
    device: torch.device = CPU,
    epochs: int | None = None,
    timesteps: int = 2,
    channels: int = 16,
) -> Iterator[Result]:
    """Train every variant and yield the test accuracies so far, as each one finishes."""
    setting = Setting(data, device, epochs or (8 if data is None else 5), timesteps, channels)
    images(data)  # report problems with the data once, before any process starts
    # deep networks first, because they take the longest
    chosen = sorted(dict.fromkeys(v for _, _, v in variants()), key=lambda v: -v.depth)
    found: dict[Variant, tuple[float, float] | Failure] = {}
    for index, outcome in isolated(accuracy_and_loss, [(variant, setting) for variant in chosen]):
        found[chosen[index]] = outcome
        yield ablation_of(found, setting, len(chosen) - len(found))


def ablation_of(found: dict[Variant, tuple[float, float] | Failure], setting: Setting, to_come: int) -> Result:
    """Return the result so far, from the accuracy and loss of every finished variant."""
    rows: list[dict[str, Any]] = []
    failed = []
    for group, label, variant in variants():
        outcome = found.get(variant)
        if isinstance(outcome, Failure):
            failed.append({"label": label, "reason": outcome.reason})
        elif outcome is not None:
            accuracy, loss = outcome
            rows.append(
                {
                    "group": group,
                    "label": label,
                    "accuracy": 100 * accuracy,
                    "loss": loss if isfinite(loss) else None,
                }
            )
    groups = {
        group: [row for row in rows if row["group"] == group] for group in dict.fromkeys(r["group"] for r in rows)
    }
    comparison = [
        f"Networks with {setting.channels} channels in the first stage, T = {setting.timesteps}, epochs: "
        f"{setting.epochs}, one seed. Differences of a few points mean little.",
        *(
            f"{group}: " + ", ".join(f"{row['label']} {row['accuracy']:.1f} %" for row in members)
            for group, members in groups.items()
        ),
        *_claim({row["label"]: row["accuracy"] for row in rows}),
        *broken(failed),
    ]
    content = {
        "setting": {"epochs": setting.epochs, "timesteps": setting.timesteps, "channels": setting.channels},
        "rows": rows,
        "failed": failed,
    }
    data = source(setting.data)
    return Result("ablation", "Ablation", data, content, comparison, charts(content), setting.device, to_come)


def charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return a chart for every group of a kept result."""
    found = []
    for group in dict.fromkeys(row["group"] for row in content["rows"]):
        members = [row for row in content["rows"] if row["group"] == group]
        series = {"accuracy": ([row["label"] for row in members], [row["accuracy"] for row in members])}
        found.append(Chart(group, "", "test accuracy, %", series, bars=True))
    return found


def _claim(by_label: dict[str, float]) -> list[str]:
    residual, plain = (by_label.get(f"{kind}, 50 layers") for kind in ("residual", "plain"))
    if residual is None or plain is None:
        return []
    return [f"The paper's claim is that 50 layers train: {residual:.1f} % with shortcuts, {plain:.1f} % without."]


def accuracy_and_loss(variant: Variant, setting: Setting) -> tuple[float, float]:
    """Train a variant and return its accuracy and loss on the test images."""
    dataset = images(setting.data)
    recipe = replace(
        recipe_for(dataset, setting.device),
        timesteps=setting.timesteps,
        epochs=setting.epochs,
        evaluate_every=setting.epochs,
        decay=variant.decay,
    )
    recipe = replace(recipe, width=variant.ratio * recipe.v_th)
    if setting.data is not None:
        recipe = replace(recipe, batch_size=CIFAR_BATCH)

    def varied(num_classes: int, in_channels: int, image_size: int, **neuron: float) -> SpikingNet:
        return build(variant, setting, num_classes, in_channels, image_size, **neuron)

    with TemporaryDirectory() as folder:
        run = train.fit(recipe, network=varied, dataset=dataset, out=Path(folder) / "run", device=str(setting.device))
        last = run.rows()[-1]
    return last["test_accuracy"], last["test_loss"]


def build(
    variant: Variant, setting: Setting, num_classes: int, in_channels: int, image_size: int, **neuron: float
) -> SpikingNet:
    """Build the network of a variant."""
    block, per_block = (BasicBlock, 2) if variant.residual else (PlainBlock, 1)
    count = (variant.depth - 2) // per_block  # without the encoding and decoding layers
    sizes = [count - 2 * (count // 3), count // 3, count // 3]
    soma: SomaFactory = VARIANTS[variant.norm][1]
    if soma is StepNorm:
        soma = partial(soma, timesteps=setting.timesteps)
    return SpikingNet(
        stem=Conv2d(in_channels, setting.channels, 3, padding=1, bias=False),
        stages=[(block, setting.channels * 2**i, n, 1 if i == 0 else 2) for i, n in enumerate(sizes)],
        head=GlobalHead,
        num_classes=num_classes,
        image_size=image_size,
        soma=soma,
        **neuron,
    )
