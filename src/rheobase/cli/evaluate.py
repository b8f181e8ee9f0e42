"""The command that measures a trained network: eval. `register` adds it to the command line."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rheobase.cli.common import (
    SIMULATED_NOTE,
    DataOption,
    DeviceOption,
    JsonOption,
    NetworkArgument,
    PluginOption,
    add_command,
    console,
    how_far,
    ordinal,
    print_json,
    print_rates,
    print_wrapped,
    table,
)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    add_command(app, evaluate, "runs/demo-1 --timesteps 2", name="eval")


def evaluate(
    network: NetworkArgument,
    data: DataOption = None,
    timesteps: Annotated[int | None, typer.Option(help="Number of timesteps; default: as trained.")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Evaluate at 1, 2, 4, ... timesteps in one pass.")] = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """Evaluate a trained network on its test images."""
    from rheobase.tasks.evaluate import evaluate_run
    from rheobase.tasks.open import open_run
    from rheobase.train.runs import Run

    if sweep:
        _sweep(network, data=data, timesteps=timesteps, device=device, json=json)
        return
    opened = open_run(network)
    with how_far("evaluating", "images") as tell:
        found = evaluate_run(opened, data=data, timesteps=timesteps, device=device, tell=tell)
    if json:
        print_json({"network": str(network), **asdict(found)})
        return
    print_rates(found.firing_rates, opened.recipe if isinstance(opened, Run) else None)
    which = f"every {ordinal(found.held_out)} image, held out from training" if found.held_out else "all test images"
    what = "test accuracy"
    if found.holdout:
        what, which = "accuracy", "training images held out by the recipe"
    console.print(f"{what} {100 * found.accuracy:.2f} %  loss {found.loss:.4f}  on {found.images} images ({which})")
    if found.simulated:
        console.print(SIMULATED_NOTE)


def _sweep(network: Path, *, json: bool, **options: Any) -> None:
    from rheobase.report.layout import ENERGY_NOTE, joule
    from rheobase.tasks.sweep import sweep_network

    with how_far("evaluating", "images") as tell:
        found = sweep_network(network, **options, tell=tell)
    if json:
        print_json({"network": str(network), "rows": [asdict(row) for row in found]})
        return
    rows = table("timesteps", "test accuracy", "spikes per neuron and timestep", "energy per image")
    for row in found:
        cells = (f"{100 * row.accuracy:.2f} %", f"{row.firing_rate:.3f}", joule(row.joule))
        rows.add_row(str(row.timesteps), *cells)
    console.print(rows, soft_wrap=False)
    print_wrapped(ENERGY_NOTE, rest="")
