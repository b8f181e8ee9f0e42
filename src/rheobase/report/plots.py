"""Plots by matplotlib: learning curves of a run, recordings, and charts of the paper's figures and tables."""

import textwrap
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from rheobase.extras import need
from rheobase.files import atomic_write
from rheobase.report.charts import Chart

# The palette of Okabe and Ito, which is safe for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":")
LETTERS = 64  # of a title above one chart; more would be cut off
LABELS = 18  # numbers under the bars of one chart; more would overlap


def figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure; sizes are in inches."""
    return need("matplotlib.figure", "a plot").Figure(figsize=(width, height), layout="constrained")


def learning_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot loss and accuracy by epoch."""
    picture = figure(9, 3.5)
    losses, accuracies = picture.subplots(1, 2)
    for axes, names, scale in (
        (losses, ("loss", "test_loss"), 1),
        (accuracies, ("train_accuracy", "test_accuracy"), 100),
    ):
        for name, label in zip(names, ("training", "test"), strict=True):
            points = [(row["epoch"], scale * row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else "")
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        axes.legend()
    losses.set_ylabel("loss")
    accuracies.set_ylabel("accuracy, %")
    _save(picture, path)


def recordings(found: Sequence[tuple[str, Mapping[str, Any]]], path: Path) -> None:
    """Plot one row per recording: brighter minus darker events of every cell, and the event rate over time."""
    picture = figure(9, 3.2 * len(found))
    for (name, seen), (image, curve) in zip(found, picture.subplots(len(found), 2, squeeze=False), strict=True):
        darker, brighter = seen["picture"]
        difference = brighter - darker
        largest = max(1, int(abs(difference).max()))
        image.imshow(difference, cmap="RdBu_r", vmin=-largest, vmax=largest)
        image.set(title=f"{name}: brighter (red), darker (blue)", xticks=[], yticks=[])
        rates = seen["rates"]
        curve.plot([(i + 0.5) * seen["seconds"] / len(rates) for i in range(len(rates))], rates, color=COLOURS[0])
        curve.set(xlabel="s", ylabel="events per second", ylim=(0, None))
        curve.grid(alpha=0.3)
        image.title.set_fontsize(9)
    _save(picture, path)


def draw(name: str, title: str, charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Draw the charts as an SVG and a PNG in `folder` and return their paths; none if there are no charts."""
    if not charts:
        return []
    wide = len(charts)
    picture = figure(5.2 * wide, 4.6)
    picture.suptitle(textwrap.fill(title, LETTERS * wide), fontsize=10)
    for axes, chart in zip(picture.subplots(1, wide, squeeze=False)[0], charts, strict=True):
        _chart(axes, chart)
    paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        _save(picture, path)
    return paths


def _save(picture: Any, path: Path) -> None:
    with atomic_write(path) as part:
        picture.savefig(part, dpi=120, format=path.suffix.removeprefix("."))


def _chart(axes: Any, chart: Chart) -> None:
    count = len(chart.series)
    for i, (label, (xs, ys)) in enumerate(chart.series.items()):
        colour = COLOURS[i % len(COLOURS)]
        if chart.bars:
            places = [p + (i - (count - 1) / 2) * 0.8 / count for p in range(len(xs))]
            axes.bar(places, ys, 0.8 / count, label=label, color=colour)
        else:
            axes.plot(xs, ys, label=label, color=colour, marker="." if len(xs) < 30 else "", linestyle=LINES[i % 3])
    if chart.bars:
        xs = next(iter(chart.series.values()))[0]
        words = any(isinstance(x, str) for x in xs)
        every = 1 if words else ceil(len(xs) / LABELS)
        turned = {"rotation": 30, "ha": "right"} if words else {}
        axes.set_xticks(range(0, len(xs), every), xs[::every], fontsize=7, **turned)
        if count > 1:
            axes.margins(y=0.3)  # room for the legend above the bars
    if chart.log:
        axes.set_yscale("log")
    if chart.log_x:
        axes.set_xscale("log")
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    if count > 1:
        axes.legend(fontsize=7)
