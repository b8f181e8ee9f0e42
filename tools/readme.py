"""Write the tables of README.md from the runs in results/: python -m tools.readme

The long tables are in docs/results.md, which python -m tools.documents writes.
"""

from pathlib import Path

from rheobase.recipes import Recipe
from rheobase.recipes.settings import as_text, differences
from tools.documents import rewritten, table
from tools.results import PAPER, ROOT, SETS, TARGET, Kept, kept, precisions

OURS = "cifar10_resnet19_t{}"
LITERAL = OURS + "_paper"  # follows the paper's own schedule
# Settings that do not matter for training, or that have their own column.
NOT_NAMED = {"name", "timesteps", "short_timesteps", "short_epochs", "evaluate_every", "memory", "seed"}


def like_for_like(runs: list[Kept]) -> str:
    """Return accuracies by T: the paper's, with its schedule, and with ours; and how the schedules differ."""
    literal, ours = _by_timesteps(runs, LITERAL), _by_timesteps(runs, OURS)
    steps = sorted({*literal, *ours})
    rows = []
    for t in steps:
        published = f"{PAPER['cifar10', 'resnet19', t]:.2f}"
        short = _short(ours[t].recipe) if t in ours else ""
        rows.append((str(t), published, _cell(literal.get(t)), _cell(ours.get(t)), short))
    headings = ("T", "paper, %", "the paper's schedule, %", "our schedule, %", "our epochs with fewer timesteps")
    lines = [_introduction(runs), "", table(headings, rows)]
    if both := [t for t in steps if t in literal and t in ours]:
        lines += ["", _differences(ours[both[0]].recipe, literal[both[0]].recipe)]
    return "\n".join(lines)


def in_little_time(sets: dict[str, list[Kept]]) -> str:
    """Return how long runs take, in total and to the paper's best accuracy, and what they reach on other data."""
    rows = [
        (
            g.words if name == "cifar10" else f"[{g.words}](results/{name}/{g.folder.name}) on {SETS[name]}",
            str(g.recipe.timesteps),
            g.last,
            g.best,
            g.seconds,
            g.seconds_to_target if name == "cifar10" else "",
        )
        for name, runs in sets.items()
        for g in runs
        if not g.forked
    ]
    headings = ("recipe", "T", "last epoch, %", "best epoch, %", "seconds", f"seconds to {TARGET} %")
    return table(headings, rows)


def _by_timesteps(runs: list[Kept], name: str) -> dict[int, Kept]:
    """Return the runs of the recipes with this name, which contains T, by T."""
    return {group.recipe.timesteps: group for group in runs if group.name == name.format(group.recipe.timesteps)}


def _introduction(runs: list[Kept]) -> str:
    devices = " and ".join(sorted({group.device for group in runs}))
    alone = all(len(group.runs) == 1 for group in runs)
    seeds = "one run each" if alone else "mean and standard deviation where there are several seeds"
    tested = f"test accuracy after the last epoch in {precisions(runs)}, {seeds}"
    return f"ResNet-19 on CIFAR-10 with T timesteps, one {devices}: {tested}."


def _differences(ours: Recipe, literal: Recipe) -> str:
    found = {name: pair for name, pair in differences(ours, literal).items() if name not in NOT_NAMED}
    words = ", ".join(f"`{name}` {as_text(own)} ({as_text(other)})" for name, (own, other) in found.items())
    return f"Our schedule differs from the paper's in these settings (the paper's in brackets): {words}."


def _cell(group: Kept | None) -> str:
    return "not run" if group is None else f"[{group.last}](results/cifar10/{group.folder.name})"


def _short(recipe: Recipe) -> str:
    short, epochs = recipe.short_epochs, recipe.epochs
    return f"{short} of {epochs}, at T = {recipe.short_timesteps}" if short else f"none of {epochs}"


def with_results(readme: str, results: Path = ROOT / "results") -> str:
    """Return the text with new tables."""
    sets = {name: kept(results / name) for name in SETS}
    sections = {"accuracies": lambda: like_for_like(sets["cifar10"]), "times": lambda: in_little_time(sets)}
    return rewritten(readme, sections, "tools.readme")


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_results(path.read_text()))
