"""Draw the figures of README.md, docs/results.md and docs/neurons.md from the files in results/: python -m tools.figure

They are plain SVG without a date, so python -m tools.check_results can tell whether they match the files.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rheobase.files import atomic_write
from tools import neurons
from tools.drawing import WIDTH, line, svg, text
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

LEFT, RIGHT = 250, 80
BAR, GAP = 15, 6
TOP, PLOT, BOTTOM, EDGE = 40, 280, 28, 52  # of the plot of accuracies
COLOURS = 6  # as in drawing.STYLE
LOWEST, HIGHEST = 80, 97  # percent; below, training has just started


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
        parts.append(text(12, y, group.title, "title"))
        y += 14
        longest = max(value for _, value in group.bars)
        for label, value in group.bars:
            kind = "bar own" if label.startswith("Rheobase") else "bar"
            wide = value / longest * (WIDTH - LEFT - RIGHT)
            parts.append(text(LEFT - 8, y + BAR - 3, label, "end"))
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="2"/>')
            parts.append(text(LEFT + wide + 6, y + BAR - 3, f"{value:.3g} {group.unit}"))
            y += BAR + GAP
        y += 8
    return svg(parts, y + 4, "; ".join(group.title for group in groups))


def accuracies(runs: list[Kept]) -> str:
    """Draw test accuracy against training time, and the paper's best."""
    longest = max(curve[-1][0] for group in runs for curve in group.curves)

    def x(seconds: float) -> float:
        return EDGE + seconds / longest * (WIDTH - 2 * EDGE)

    def y(accuracy: float) -> float:
        return TOP + (HIGHEST - accuracy) / (HIGHEST - LOWEST) * PLOT

    title = "ResNet-19 on CIFAR-10: test accuracy (%) against training time (s)"
    devices = ", ".join(sorted({group.device for group in runs}))
    parts = [text(12, 22, f"{title}, one {devices}", "title")]
    for percent in range(LOWEST, HIGHEST, 5):
        parts.append(line("grid", EDGE, WIDTH - EDGE, y(percent), y(percent)))
        parts.append(text(EDGE - 8, y(percent) + 4, str(percent), "end"))
    parts += [text(x(s), TOP + PLOT + 18, str(s), "middle") for s in range(0, int(longest) + 1, 100)]
    parts.append(line("mark", EDGE, WIDTH - EDGE, y(TARGET), y(TARGET)))
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
        parts += [line(kind, WIDTH - 356, WIDTH - 328, place - 4, place - 4), text(WIDTH - 320, place, words)]
    return svg(parts, TOP + PLOT + BOTTOM, title)


def drawings(results: Path) -> dict[str, str]:
    """Return the name and content of every figure for which there are results."""
    whole = [group for group in kept(results / "cifar10") if not group.forked]  # forked runs lack their first epochs
    made: list[tuple[str, Callable[[Any], str], Any]] = [
        ("accuracy-cifar10", accuracies, whole),
        (f"speed-{DEVICE}", bars, steps(results)),
        (f"speed-{DEVICE}-inference", bars, inference(results)),
        ("neurons/comparison", neurons.drawing, neurons.groups(results / "neurons")),
    ]
    return {f"{name}.svg": draw(content) for name, draw, content in made if content}


def main(results: Path = ROOT / "results") -> None:
    for name, drawing in drawings(results).items():
        with atomic_write(results / name) as part:
            part.write_text(drawing)
        print(f"written to {results / name}")


if __name__ == "__main__":
    main()
