"""Compare neurons and residual styles by accuracy, firing rate and energy: python -m tools.neurons

This compares the runs in results/neurons and draws comparison.svg and comparison.png there. tools.documents writes
their table in docs/neurons.md.
"""

from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean

from rheobase.report.plots import COLOURS, figure
from rheobase.tasks.compare import Group, compare

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


@cache
def groups() -> dict[str, Group]:
    """Return the runs of every variant."""
    return dict(zip(VARIANTS, compare([FOLDER / name for name in VARIANTS]).rows, strict=True))


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


def draw() -> list[Path]:
    """Draw the accuracy of every run, and the energy, side by side."""
    found = groups()
    picture = figure(9, 3.6)
    left, right = picture.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    words = [words.partition(":")[0] for words in VARIANTS.values()]
    for y, (name, group) in enumerate(found.items()):
        color = COLOURS[0 if name == BASE else 1]
        accuracies = [100 * run.accuracy_last for run in group.runs if run.accuracy_last is not None]
        left.plot(accuracies, [y] * len(accuracies), "o", color=color, alpha=0.5)
        left.plot(fmean(accuracies), y, "|", color=color, markersize=16, markeredgewidth=2)
        right.barh(y, 1e6 * _means(group)[3], color=color)
    base, chance = (100 * number for number in (_means(found[BASE])[0], noise(found)))
    left.axvspan(base - chance, base + chance, color=COLOURS[0], alpha=0.1, linewidth=0)
    left.set_yticks(range(len(words)), words)
    left.invert_yaxis()
    left.set_xlabel("accuracy on held-out images, %\nshaded: within noise of the first")
    right.set_xlabel("energy of an image, uJ")
    paths = [FOLDER / f"comparison.{kind}" for kind in ("svg", "png")]
    for path in paths:
        picture.savefig(path, dpi=120)
    return paths


if __name__ == "__main__":
    print("wrote", *draw())
