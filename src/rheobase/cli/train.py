"""The commands that train and measure: demo, train, eval. `register` adds them to the command line."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheobase.cli import analysis, deploy
from rheobase.cli.common import (
    RECIPE_HELP,
    RUN_HELP,
    DataOption,
    DeviceOption,
    NetworkArgument,
    PluginOption,
    SettingsOption,
    command_line,
    console,
    print_next,
    table,
)
from rheobase.extras import installed

if TYPE_CHECKING:
    from rheobase.recipes import Recipe
    from rheobase.train.runs import Run

OutOption = Annotated[Path | None, typer.Option(help="Folder for the run; otherwise the first free runs/NAME-NUMBER.")]
SIMULATED_NOTE = "its recordings are simulated: this says nothing about real ones"


class Frozen(StrEnum):
    body = "body"


def register(app: typer.Typer) -> None:
    app.command()(demo)
    app.command()(train)
    app.command("eval")(evaluate)


def demo(
    out: OutOption = None,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
) -> None:
    """Train a small spiking network on the embedded hand-written digits: about a minute on two cores."""
    import torch

    from rheobase import recipes

    torch.set_num_threads(1)  # the network is so small that a second thread only waits
    recipe = recipes.get("demo").changed([f"seed={seed}"])
    console.print(f"{recipe.network}, {recipe.timesteps} timesteps, on 1797 hand-written digits")
    run = _fit(recipe, out=out, device=device)
    deploy.deploy(run.folder)
    console.print(f"report, for a browser: {analysis.write_report(run.folder)}")
    print_next(
        (command_line("eval", run.folder, "--timesteps", 2), "the same network with half the steps"),
        (command_line("export", run.folder, "--to", "nir", "--int8"), "in integers, for neuromorphic hardware"),
        ("rheobase train demo --set decay=0.5", "change the recipe"),
        ("rheobase recipes", "the recipes of the paper"),
        ("rheobase models", "the networks"),
    )


def train(
    recipe: Annotated[str | None, typer.Argument(help=RECIPE_HELP)] = None,
    settings: SettingsOption = None,
    data: DataOption = None,
    out: OutOption = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="RUN|NAME", help=f"Begin with trained weights. {RUN_HELP}")
    ] = None,
    freeze: Annotated[Frozen | None, typer.Option(help="Train the head alone, of a network given by --from.")] = None,
    keep_best: Annotated[bool, typer.Option("--keep-best", help="Keep the best epoch too, as RUN/best.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    device: DeviceOption = "auto",
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Get the data set if it is not there.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write scalars for TensorBoard.")] = False,
    save_every: Annotated[float | None, typer.Option(min=0, help="Seconds between two checkpoints.")] = None,
    parts: Annotated[bool, typer.Option("--parts", help="Cut files of checkpoints into parts of 15 MiB.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Train a network by a recipe."""
    from rheobase import recipes

    changes = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    changes += [] if freeze is None else [f"freeze={freeze}"]
    options: dict[str, Any] = {"data": data, "device": device, "download": download, "tensorboard": tensorboard}
    options["part_bytes"] = 15 * 2**20 if parts else None
    if save_every is not None:
        options["save_every"] = save_every
    if resume is not None:
        if recipe or changes or out or start or keep_best:
            others = "RECIPE, --set, --seed, --out, --from, --freeze and --keep-best"
            raise ValueError(f"--resume continues a run as it began; leave out {others}")
        run = _fit(None, out=resume, resume=True, **options)
    elif recipe is None:
        raise ValueError(f"which recipe? choose one of {', '.join(recipes.RECIPES)}, or --resume a run")
    else:
        chosen = recipes.get(recipe).changed(changes)
        run = _fit(chosen, out=out, start=start, keep_best=keep_best, **options)
    print_next(
        (command_line("eval", run.folder, data=data), "measure the network again"),
        (command_line("export", run.folder, "--to", "nir"), "the network for neuromorphic hardware"),
    )


def evaluate(
    network: NetworkArgument,
    data: DataOption = None,
    timesteps: Annotated[int | None, typer.Option(help="Other than the network was trained with.")] = None,
    device: DeviceOption = "auto",
    plugin: PluginOption = None,
) -> None:
    """Measure a trained network on its test images."""
    from rheobase.tasks.evaluate import evaluate_run

    found = evaluate_run(network, data=data, timesteps=timesteps, device=device)
    _print_rates(found.firing_rates)
    console.print(f"test accuracy {100 * found.accuracy:.2f} %  loss {found.loss:.4f}")
    if found.simulated:
        console.print(SIMULATED_NOTE)


def _fit(
    recipe: "Recipe | None", *, device: str, data: Path | None = None, tensorboard: bool = False, **options: Any
) -> "Run":
    from rheobase import train
    from rheobase.train.heap import keep_freed_memory
    from rheobase.train.progress import reporter_for

    if train.choose_device(device).type == "cpu":
        keep_freed_memory()
    reporter = reporter_for(console)
    if tensorboard:
        from rheobase.train.tensorboard import TensorBoard

        reporter = TensorBoard(reporter)
    try:
        run = train.fit(recipe, device=device, data=data, reporter=reporter, began=0.0, **options)
    except train.Interrupted as stop:
        typer.echo(f"{stop}; continue with: {command_line('train', '--resume', stop.folder, data=data)}", err=True)
        raise typer.Exit(130) from None
    if os.environ.get("RANK", "0") != "0":
        raise typer.Exit
    rows = run.rows()
    if not rows:
        raise ValueError(f"{run.metrics} is not there, and the run is at its end: nothing to show")
    _print_rates(rows[-1]["firing_rates"])
    last, best = rows[-1], max((row for row in rows if "test_accuracy" in row), key=lambda row: row["test_accuracy"])
    console.print(
        f"test accuracy {100 * last['test_accuracy']:.2f} % after the last epoch and {last['elapsed']:.0f} s "
        f"(best epoch {100 * best['test_accuracy']:.2f} % after {best['elapsed']:.0f} s)"
    )
    if run.data.simulated:
        console.print(SIMULATED_NOTE)
    console.print(f"run folder {run.folder}")
    if installed("matplotlib"):
        from rheobase.report.plots import learning_curves

        learning_curves(rows, run.folder / "curves.png")
        console.print(f"learning curves {run.folder / 'curves.png'}")
    return run


def _print_rates(rates: dict[str, float]) -> None:
    rows = table("layer", last="spikes per neuron and step")
    for layer, rate in rates.items():
        rows.add_row(layer, f"{rate:.3f}")
    console.print(rows, soft_wrap=False)
