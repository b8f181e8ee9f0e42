"""The command `compare`: runs side by side."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli.common import (
    JsonOption,
    PluginOption,
    add_command,
    console,
    print_json,
    print_wrapped,
    table,
    target_file,
)

if TYPE_CHECKING:
    from rheobase.tasks.compare import Comparison


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    add_command(app, compare, "runs/demo-1 runs/demo-2 --html comparison.html")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain runs.")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with plots to this HTML file.")] = None,
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """Compare runs: accuracy, time, firing rate and energy. Runs that differ only in the seed share one row."""
    from rheobase.report import comparison, layout
    from rheobase.tasks import compare as task

    target = target_file(html, "html") if html else None
    found = task.compare(runs)
    if target:
        page = comparison.render(asdict(found))
        layout.write(page, target)
    if json:
        print_json(asdict(found))
        return
    _show(found)
    if target:
        console.print(f"wrote {target}; open it in a browser")


def _show(found: "Comparison") -> None:
    from rheobase.recipes.settings import as_text
    from rheobase.report import comparison

    data = asdict(found)
    rows = table("", "n", "last, %", "best, %", "T", "time", "rate", "energy")
    for i, row in enumerate(data["rows"], 1):
        rows.add_row(str(i), *comparison.cells(row))
    console.print(rows, soft_wrap=False)
    for i, row in enumerate(data["rows"], 1):
        print_wrapped(comparison.name(row), f"{i:>2}  ", "    ")
    _draw(found)
    if found.differing_settings:
        console.print("settings that differ (rows in parentheses):")
    for name, values in found.differing_settings.items():
        rows_of: dict[str, list[str]] = {}
        for i, value in enumerate(values, 1):
            rows_of.setdefault(as_text(value), []).append(str(i))
        told = "; ".join(f"{value} ({', '.join(where)})" for value, where in rows_of.items())
        print_wrapped(f"{name}: {told}", "  ", "    ")
    for sentence in comparison.notes(data):
        print_wrapped(sentence, "note: ", "      ")


def _draw(found: "Comparison") -> None:
    """Draw the accuracies on one scale."""
    from rheobase.report.strips import strips

    known = [
        (i, row.accuracy_last, row.accuracy_best)
        for i, row in enumerate(found.rows, 1)
        if row.accuracy_last and row.accuracy_best
    ]
    if len(known) < 2:
        return
    values = [(last.mean, last.deviation or 0.0, best.mean) for _, last, best in known]
    lines, low, high = strips(values, console.width - 6)
    console.print(f"test accuracy from {100 * low:.2f} to {100 * high:.2f} %: o last epoch, x best epoch, - deviation")
    for (i, _, _), line in zip(known, lines, strict=True):
        console.print(f"{i:>2}  {line}")
