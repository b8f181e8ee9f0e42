"""Compare neurons and residual styles by accuracy, firing rate and energy: the runs in results/neurons.

tools.documents writes their table in docs/neurons.md, and tools.figure draws them.
"""

from functools import cache
from math import ceil, floor, sqrt
from pathlib import Path
from statistics import fmean

from rheobase.tasks.compare import Group, compare
from tools.drawing import line, svg, text

FOLDER = Path(__file__).parents[1] / "results" / "neurons"
BASE = "paper"
VARIANTS = {
    BASE: "the fast recipe: rectangle, hard reset, decay 0.5, the paper's blocks",
    "triangle": "triangle",
    "sigmoid": "sigmoid",
    "atan": "atan",
    "soft": "soft reset",
    "decay025": "decay 0.25",
    "learnt": "a learnt decay per layer, from 0.5",
    "sew": "SEW blocks",
    "ms": "MS blocks",
}
STUDENT = {9: 2.262}  # by degrees of freedom: 95 % of chance differences stay below it, in standard errors
HEADINGS = ("variant", "accuracy, %", "difference", "firing rate", "energy, uJ", "s")
LEFT, RIGHT, BARS, LONGEST = 250, 540, 572, 130  # of the accuracies, and of the bars of energy
TOP, ROW = 56, 22


@cache
def groups(folder: Path = FOLDER) -> dict[str, Group]:
    """Return the runs of every variant; none if they are not there."""
    if not folder.exists():
        return {}
    return dict(zip(VARIANTS, compare([folder / name for name in VARIANTS]).rows, strict=True))


def noise(found: dict[str, Group]) -> float:
    """Return the difference of two variants that chance exceeds in one case of twenty.

    All variants are assumed to have the same variance, so two seeds of each are enough to estimate it.
    """
    spreads = [group.accuracy_last for group in found.values()]
    variance = fmean(spread.deviation**2 for spread in spreads if spread and spread.deviation is not None)
    (runs,) = {spread.n for spread in spreads if spread}
    return STUDENT[len(spreads) * (runs - 1)] * sqrt(2 * variance / runs)


def rows() -> list[tuple[str, ...]]:
    """Return the cells of the table. A difference within noise is marked."""
    found = groups()
    chance, base = noise(found), _means(found[BASE])[0]
    cells = []
    for name, words in VARIANTS.items():
        accuracy, deviation, rate, joule, seconds = _means(found[name])
        apart = f"{100 * (accuracy - base):+.2f}" + ("" if abs(accuracy - base) > chance else ", within noise")
        numbers = f"{100 * accuracy:.2f} ± {100 * deviation:.2f}", "" if name == BASE else apart
        cells.append((words, *numbers, f"{rate:.3f}", f"{1e6 * joule:.0f}", f"{seconds:.0f}"))
    return cells


def noise_sentence() -> str:
    """Return a sentence about how large a difference must be to be meaningful."""
    return f"A difference below {100 * noise(groups()):.2f} points is within noise."


def _means(group: Group) -> tuple[float, float, float, float, float]:
    accuracy, rate, joule, seconds = group.accuracy_last, group.firing_rate, group.joule, group.seconds
    if accuracy is None or accuracy.deviation is None or rate is None or joule is None or seconds is None:
        raise ValueError(f"{group.name} lacks an accuracy, rate, energy or time of two seeds; train them first")
    return accuracy.mean, accuracy.deviation, rate.mean, joule.mean, seconds.mean


def drawing(found: dict[str, Group]) -> str:
    """Draw the accuracy of every run with the mean of each variant, and the energy beside it."""
    accuracies = {
        name: [100 * run.accuracy_last for run in group.runs if run.accuracy_last is not None]
        for name, group in found.items()
    }
    joules = {name: 1e6 * _means(group)[3] for name, group in found.items()}
    low = floor(min(map(min, accuracies.values())))
    high = ceil(max(map(max, accuracies.values())))
    bottom = TOP + ROW * len(found)

    def x(percent: float) -> float:
        return LEFT + (percent - low) / (high - low) * (RIGHT - LEFT)

    title = "Neurons and blocks on CIFAR-10: accuracy and energy"
    parts = [text(12, 22, title, "title"), text(BARS, TOP - 12, "energy per image, uJ")]
    parts.append(text(LEFT, TOP - 12, "accuracy on held-out images, %"))
    base, chance = fmean(accuracies[BASE]), 100 * noise(found)
    left, right = (x(min(high, max(low, edge))) for edge in (base - chance, base + chance))
    box = f'x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{bottom - TOP}"'
    parts.append(f'<rect class="bar own" fill-opacity="0.15" {box}/>')
    for percent in range(low, high + 1):
        parts.append(line("grid", x(percent), x(percent), TOP, bottom))
        parts.append(text(x(percent), bottom + 16, str(percent), "middle"))
    for row, name in enumerate(found):
        own, mean = ("bar own", "curve c2") if name == BASE else ("bar", "curve c3")
        y = TOP + (row + 0.5) * ROW
        parts.append(text(LEFT - 12, y + 4, VARIANTS[name].partition(":")[0], "end"))
        parts += [
            f'<circle class="{own}" fill-opacity="0.75" cx="{x(accuracy):.1f}" cy="{y:.1f}" r="4"/>'
            for accuracy in accuracies[name]
        ]
        middle, wide = x(fmean(accuracies[name])), joules[name] / max(joules.values()) * LONGEST
        parts.append(line(mean, middle, middle, y - 8, y + 8))
        parts.append(f'<rect class="{own}" x="{BARS}" y="{y - 7:.1f}" width="{wide:.1f}" height="14" rx="2"/>')
        parts.append(text(BARS + wide + 6, y + 4, f"{joules[name]:.0f}"))
    parts.append(text(LEFT, bottom + 36, "points: runs; lines: means; shaded: within noise of the first"))
    return svg(parts, bottom + 48, title)
