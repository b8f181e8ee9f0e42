"""Plots by matplotlib: learning curves of a run, recordings, and charts of the paper's figures and tables."""

import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

from rheobase.extras import need
from rheobase.files import atomic_write
from rheobase.report.charts import Chart

# The palette of Okabe and Ito, which is safe for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREYS = ("#8C959F", "#C3CAD1")  # what our own bars are compared with
LINES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
LEGEND: Mapping[str, Any] = {"fontsize": 7, "frameon": False, "handlelength": 4.5}  # so long that dashes can be seen
LETTERS = 64  # of a title above one chart; more would be cut off
SMALL = 90  # letters of a legend in one line
LABELS = 18  # numbers under the bars of one chart; more would overlap
WIDE, TALL = 5.2, 4.6  # inches of a chart
BAR, FRAME = 0.2, 0.3  # inches of a horizontal bar, and of the title above some
BELOW = 32  # points from a frame to the legend, for the numbers and the name of the axis


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
        for i, (name, label) in enumerate(zip(names, ("training", "test"), strict=True)):
            points = [(row["epoch"], scale * row[name]) for row in rows if name in row]
            look = {"color": COLOURS[i], "linestyle": LINES[i], "marker": "." if len(points) < 30 else ""}
            axes.plot(*zip(*points, strict=True), label=label, **look)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)
        _bare(axes)
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
    """Draw the charts as an SVG and a PNG in `folder` and return their paths; none if there are no charts.

    Charts stand side by side; bars with words stand below each other, on one scale.
    """
    if not charts:
        return []
    if all(_of_words(chart) for chart in charts):
        bars = [sum(len(xs) for xs, _ in chart.series.values()) for chart in charts]
        picture, letters = figure(1.5 * WIDE, 1 + sum(FRAME + BAR * count for count in bars)), 1.5 * LETTERS
        frames = picture.subplots(len(charts), 1, squeeze=False, height_ratios=bars, sharex=True)[:, 0]
    else:
        picture, letters = figure(WIDE * len(charts), TALL), LETTERS * len(charts)
        frames = picture.subplots(1, len(charts), squeeze=False)[0]
    picture.suptitle(textwrap.fill(title, int(letters)), fontsize=10)
    for axes, chart in zip(frames, charts, strict=True):
        (_bars_of_words if _of_words(chart) else _chart)(axes, chart)
        axes.set_xlabel(axes.get_xlabel() if axes.xaxis.get_tick_params()["labelbottom"] else "")
    if len(charts) > 1 and len({tuple(chart.series) for chart in charts}) == 1:
        _common_legend(picture, charts)
    else:
        for axes, chart in zip(frames, charts, strict=True):
            _legend(axes, chart)
    paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        _save(picture, path)
    return paths


def _save(picture: Any, path: Path) -> None:
    """Save a plot. A PNG gets a palette, which makes it a third of the size."""
    drawn, kind = BytesIO(), path.suffix.removeprefix(".")
    picture.savefig(drawn, dpi=120, format=kind)
    with atomic_write(path) as part:
        if kind == "png":
            need("PIL.Image", "a plot").open(drawn).convert("RGB").quantize().save(part, kind, optimize=True)
        else:
            part.write_bytes(drawn.getvalue())


def _of_words(chart: Chart) -> bool:
    return chart.bars and any(isinstance(x, str) for xs, _ in chart.series.values() for x in xs)


def _bars_of_words(axes: Any, chart: Chart) -> None:
    """Draw horizontal bars, with words at their left and values at their ends. The first series is our own."""
    count = len(chart.series)
    for i, (label, (xs, ys)) in enumerate(chart.series.items()):
        places = [place + (i - (count - 1) / 2) * 0.8 / count for place in range(len(xs))]
        colour = COLOURS[0] if i == 0 else GREYS[(i - 1) % len(GREYS)]
        drawn = axes.barh(places, ys, 0.72 / count, label=label, color=colour)
        axes.bar_label(drawn, fmt=_value, padding=3, fontsize=7)
    words = next(iter(chart.series.values()))[0]
    axes.set_yticks(range(len(words)), words, fontsize=8)
    axes.set_ylim(len(words) - 0.5, -0.5)  # the first at the top
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)  # room for the values
    _name(axes, chart, x=chart.y, y=chart.x)
    axes.grid(visible=False, axis="y")


def _value(value: float) -> str:
    return f"{value:.2f}" if value < 1e5 else f"{value:.2e}"


def _chart(axes: Any, chart: Chart) -> None:
    count = len(chart.series)
    for i, (label, (xs, ys)) in enumerate(chart.series.items()):
        hue, dashes = chart.looks.get(label, (i, i))
        colour = COLOURS[hue % len(COLOURS)]
        if chart.bars:
            places = [p + (i - (count - 1) / 2) * 0.8 / count for p in range(len(xs))]
            axes.bar(places, ys, 0.8 / count, label=label, color=colour)
        elif dashes is None:
            axes.plot(xs, ys, label=label, color=colour, marker="o", linestyle="", zorder=3)
        else:
            line = LINES[dashes % len(LINES)]
            axes.plot(xs, ys, label=label, color=colour, marker="." if len(xs) < 30 else "", linestyle=line)
    if chart.bars:
        xs = next(iter(chart.series.values()))[0]
        every = ceil(len(xs) / LABELS)
        axes.set_xticks(range(0, len(xs), every), xs[::every], fontsize=7)
    if chart.mark:
        label, place = chart.mark
        axes.axvline(place, label=label, color=COLOURS[-1], linestyle=LINES[1], linewidth=1)
    if chart.log:
        axes.set_yscale("log")
        ticker, (low, high) = need("matplotlib.ticker", "a plot"), axes.get_ylim()
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6) if high < 10 * low else ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    if chart.log_x:  # counts such as timesteps double
        counts = all(float(x).is_integer() for xs, _ in chart.series.values() for x in xs)
        axes.set_xscale("log", base=2 if counts else 10)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=chart.low)
    _name(axes, chart, x=chart.x, y=chart.y)


def _name(axes: Any, chart: Chart, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(chart.title, fontsize=9, loc="left")
    _bare(axes)


def _legend(axes: Any, chart: Chart) -> None:
    """Write a legend below the name of the x axis, where it covers nothing."""
    if len(chart.series) > 1:
        moved = need("matplotlib.transforms", "a plot").offset_copy
        below = moved(axes.transAxes, axes.figure, y=-BELOW, units="points")
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
        axes.legend(ncols=_columns(chart, 1), **LEGEND, **place)


def _common_legend(picture: Any, charts: Sequence[Chart]) -> None:
    """Write one legend below charts that have the same lines."""
    if len(charts[0].series) > 1:
        lines = picture.axes[0].get_legend_handles_labels()
        picture.legend(*lines, ncols=_columns(charts[0], len(charts)), loc="outside lower center", **LEGEND)


def _columns(chart: Chart, charts: int) -> int:
    """Return the number of columns of a legend below some charts, in rows of about the same length."""
    room = max(1, SMALL * charts // (max(map(len, chart.series)) + 11))  # a line and gaps take as much as eleven
    lines = len(chart.series) + (chart.mark is not None)
    return ceil(lines / ceil(lines / room))


def _bare(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
