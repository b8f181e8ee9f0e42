"""Draw the figures of README.md and docs/results.md from the files in results/: python -m tools.figure

They are plain SVG without a date, so python -m tools.check_results can tell whether they match the files.
"""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rheobase.files import atomic_write
from tools.results import CONTENDERS, ROOT, TARGET, Kept, facts, kept

DEVICE = "nvidia-h200"
STEP = ("floor", "rheobase-speed", "relu-graph", "relu-compiled", "spikingjelly-compiled", "spikingjelly", "snntorch")
CAPTURED = ", CUDA graph"
INFERENCE = {  # by the names of benchmarks.inference
    "as trained": "Rheobase, as trained",
    "folded": "Rheobase, folded",
    "ReLU network, T x N images": "ReLU network",
    "SpikingJelly": "SpikingJelly",
}

WIDTH, LEFT, RIGHT = 760, 250, 80
BAR, GAP = 15, 6
TOP, PLOT, BOTTOM, EDGE = 40, 280, 28, 52  # of the plot of accuracies
COLOURS = 6  # as in STYLE
LOWEST, HIGHEST = 80, 97  # percent; below, training has just started
STYLE = """
svg { font: 12px system-ui, sans-serif }
svg { --page: #fff; --ink: #24292f; --line: #d0d7de; --other: #8c959f; --own: #0072b2 }
@media (prefers-color-scheme: dark) {
  svg { --page: #0d1117; --ink: #e6edf3; --line: #3d444d; --other: #6e7681; --own: #56b4e9 }
}
text { fill: var(--ink) } .title { font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
.page { fill: var(--page) } .bar { fill: var(--other) } .own { fill: var(--own) } .grid { stroke: var(--line) }
.curve { fill: none; stroke-width: 2 } .c0 { stroke: #d55e00 } .c1 { stroke: #009e73 } .c2 { stroke: var(--own) }
.c3 { stroke: var(--other) } .c4 { stroke: #cc79a7 } .c5 { stroke: #e69f00 }
.mark { stroke: var(--ink); stroke-dasharray: 5 4 }
"""


class Group(NamedTuple):
    """Bars that can be compared: label and value of each."""

    title: str
    unit: str
    bars: list[tuple[str, float]]


def steps(results: Path) -> list[Group]:
    """Return the training step of every network, with bars for the contenders that took part."""
    paths = [results / f"step-{DEVICE}{network}.json" for network in ("", "-resnet34", "-resnet50")]
    groups = []
    for content in (json.loads(path.read_text()) for path in paths if path.exists()):
        (run,) = content["runs"]
        setting, found = run["setting"], run["results"]
        bars = [(CONTENDERS[name], found[name]["us_per_image_timestep"]) for name in STEP if name in found]
        bars.sort(key=lambda bar: bar[1])
        title = f"Training step of {_title(setting['network'])}, T = {setting['timesteps']}, N = {setting['batch']}"
        title += f", bf16, one {facts(content)['device']}: µs per image and timestep"
        groups.append(Group(title, "µs", bars))
    return groups


def inference(results: Path) -> list[Group]:
    """Return the time of a batch of every size, for the contenders with a CUDA graph."""
    path = results / f"inference-{DEVICE}.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    title = f"Inference of {_title(content['settings']['network'])}, T = {content['settings']['timesteps']}"
    end = f"one {facts(content)['device']}, CUDA graph: ms per batch"
    groups = []
    for batch, found in content["results"].items():
        bars = [
            (label, found[name + CAPTURED]["milliseconds"])
            for name, label in INFERENCE.items()
            if name + CAPTURED in found
        ]
        groups.append(Group(f"{title}, N = {batch}, {end}", "ms", bars))
    return [group for group in groups if group.bars]


def _title(network: str) -> str:
    return network.replace("resnet", "ResNet-")


def bars(groups: list[Group]) -> str:
    """Draw groups of horizontal bars, each on its own scale, with the values at their ends."""
    parts, y = [], 0
    for group in groups:
        y += 22
        parts.append(_text(12, y, group.title, "title"))
        y += 14
        longest = max(value for _, value in group.bars)
        for label, value in group.bars:
            kind = "bar own" if label.startswith("Rheobase") else "bar"
            wide = value / longest * (WIDTH - LEFT - RIGHT)
            parts.append(_text(LEFT - 8, y + BAR - 3, label, "end"))
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="2"/>')
            parts.append(_text(LEFT + wide + 6, y + BAR - 3, f"{value:.3g} {group.unit}"))
            y += BAR + GAP
        y += 8
    return _svg(parts, y + 4, "; ".join(group.title for group in groups))


def accuracies(runs: list[Kept]) -> str:
    """Draw test accuracy against training time, and the paper's best."""
    longest = max(curve[-1][0] for group in runs for curve in group.curves)

    def x(seconds: float) -> float:
        return EDGE + seconds / longest * (WIDTH - 2 * EDGE)

    def y(accuracy: float) -> float:
        return TOP + (HIGHEST - accuracy) / (HIGHEST - LOWEST) * PLOT

    title = "ResNet-19 on CIFAR-10: test accuracy (%) against training time (s)"
    devices = ", ".join(sorted({group.device for group in runs}))
    parts = [_text(12, 22, f"{title}, one {devices}", "title")]
    for percent in range(LOWEST, HIGHEST, 5):
        parts.append(_line("grid", EDGE, WIDTH - EDGE, y(percent)))
        parts.append(_text(EDGE - 8, y(percent) + 4, str(percent), "end"))
    parts += [_text(x(s), TOP + PLOT + 18, str(s), "middle") for s in range(0, int(longest) + 1, 100)]
    parts.append(_line("mark", EDGE, WIDTH - EDGE, y(TARGET)))
    labels = [("mark", f"the paper's best, T = 6: {TARGET} %")]
    for i, group in enumerate(runs):
        kind = f"curve c{i % COLOURS}"
        for curve in group.curves:
            points = " ".join(
                f"{x(seconds):.1f},{y(accuracy):.1f}" for seconds, accuracy in curve if accuracy >= LOWEST
            )
            parts.append(f'<polyline class="{kind}" points="{points}"/>')
        labels.append((kind, f"{group.name}, T = {group.recipe.timesteps}: {mean(group.accuracies):.2f} %"))
    tall = 20 * len(labels)  # at the bottom right, where there are no curves
    parts.append(f'<rect class="page" x="{WIDTH - 364}" y="{TOP + PLOT - 10 - tall}" width="312" height="{tall}"/>')
    for i, (kind, words) in enumerate(reversed(labels)):
        place = TOP + PLOT - 16 - 20 * i
        parts += [_line(kind, WIDTH - 356, WIDTH - 328, place - 4), _text(WIDTH - 320, place, words)]
    return _svg(parts, TOP + PLOT + BOTTOM, title)


def _line(kind: str, left: float, right: float, y: float) -> str:
    return f'<line class="{kind}" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _svg(parts: list[str], height: float, title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
    page = f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", page, *parts, "</svg>\n"])


def drawings(results: Path) -> dict[str, str]:
    """Return the name and content of every figure for which there are results."""
    whole = [group for group in kept(results / "cifar10") if not group.forked]  # forked runs lack their first epochs
    made: list[tuple[str, Callable[[Any], str], Any]] = [
        ("accuracy-cifar10", accuracies, whole),
        (f"speed-{DEVICE}", bars, steps(results)),
        (f"speed-{DEVICE}-inference", bars, inference(results)),
    ]
    return {f"{name}.svg": draw(content) for name, draw, content in made if content}


def main(results: Path = ROOT / "results") -> None:
    for name, drawing in drawings(results).items():
        with atomic_write(results / name) as part:
            part.write_text(drawing)
        print(f"written to {results / name}")


if __name__ == "__main__":
    main()
