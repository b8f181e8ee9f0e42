"""Pictures of the paper's figures and tables: plain charts -> SVG and PNG."""

from pathlib import Path
from typing import Any

from rheobase import curves
from rheobase.paper.result import Chart, Result

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(result: Result, folder: Path) -> list[Path]:
    """One SVG and one PNG, named after the result; none where there is nothing to draw."""
    if not result.charts:
        return []
    wide = len(result.charts)
    figure = curves.figure(5.2 * wide, 4.6)
    figure.suptitle(f"{result.title} ({result.source})", fontsize=10)
    for axes, chart in zip(figure.subplots(1, wide, squeeze=False)[0], result.charts, strict=True):
        _chart(axes, chart)
    paths = [folder / f"{result.name}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=120)
    return paths


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
        axes.set_xticks(range(len(xs)), xs, rotation=30 if words else 0, ha="right" if words else "center", fontsize=7)
    if chart.log:
        axes.set_yscale("log")
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    if any(chart.series):
        axes.legend(fontsize=7)


LINES = ("-", "--", ":")
