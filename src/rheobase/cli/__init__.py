"""The command line: parse, call, print. Commands import what they need, so that --help is quick."""

import os
import sys
import warnings
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from rheobase import __version__
from rheobase.cli import analysis as cli_analysis
from rheobase.cli import data as cli_data
from rheobase.cli import deploy as cli_deploy
from rheobase.cli.common import DataOption, DeviceOption, command_line, console, print_next, table

if TYPE_CHECKING:
    from rheobase.recipes import Recipe
    from rheobase.train.runs import Run

app = typer.Typer(
    help="Train deep spiking neural networks directly (STBP-tdBN).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
errors = Console(highlight=False, soft_wrap=True, markup=False, stderr=True)

OutOption = Annotated[Path | None, typer.Option(help="Folder for the run; otherwise the first free runs/NAME-NUMBER.")]
RECIPE_HELP = "Name of a recipe; `rheobase recipes` lists them."
SIMULATED_NOTE = "its recordings are simulated: this says nothing about real ones"
RecipeArgument = Annotated[str, typer.Argument(help=RECIPE_HELP)]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rheobase {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


@app.command()
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
    cli_deploy.deploy(run.folder)
    console.print(f"report, for a browser: {cli_analysis.write_report(run.folder)}")
    print_next(
        (command_line("eval", run.folder, "--timesteps", 2), "the same network with half the steps"),
        (command_line("export", run.folder, "--to", "nir", "--int8"), "in integers, for neuromorphic hardware"),
        ("rheobase train demo --set decay=0.5", "change the recipe"),
        ("rheobase recipes", "the recipes of the paper"),
        ("rheobase models", "the networks"),
    )


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help=RECIPE_HELP)] = None,
    settings: SettingsOption = None,
    data: DataOption = None,
    out: OutOption = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    device: DeviceOption = "auto",
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Get the data set if it is not there.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write scalars for TensorBoard.")] = False,
    save_every: Annotated[float | None, typer.Option(min=0, help="Seconds between two checkpoints.")] = None,
    parts: Annotated[bool, typer.Option("--parts", help="Cut files of checkpoints into parts of 15 MiB.")] = False,
) -> None:
    """Train a network by a recipe."""
    from rheobase import recipes
    from rheobase.train.runs import Run

    changes = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    options: dict[str, Any] = {"data": data, "device": device, "download": download, "tensorboard": tensorboard}
    options["part_bytes"] = 15 * 2**20 if parts else None
    if save_every is not None:
        options["save_every"] = save_every
    if resume is not None:
        if recipe or changes or out:
            raise ValueError("--resume continues a run as it began; leave out RECIPE, --set, --seed and --out")
        run = _fit(Run(resume).recipe(), out=resume, resume=True, **options)
    elif recipe is None:
        raise ValueError(f"which recipe? choose one of {', '.join(recipes.RECIPES)}, or --resume a run")
    else:
        run = _fit(recipes.get(recipe).changed(changes), out=out, **options)
    print_next(
        (command_line("eval", run.folder, data=data), "measure the network again"),
        (command_line("export", run.folder, "--to", "nir"), "the network for neuromorphic hardware"),
    )


@app.command("eval")
def evaluate(
    network: cli_deploy.NetworkArgument,
    data: DataOption = None,
    timesteps: Annotated[int | None, typer.Option(help="Other than the network was trained with.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Measure a trained network on its test images."""
    from rheobase.tasks.evaluate import evaluate_run

    found = evaluate_run(network, data=data, timesteps=timesteps, device=device)
    _print_rates(found.firing_rates)
    console.print(f"test accuracy {100 * found.accuracy:.2f} %  loss {found.loss:.4f}")
    if found.simulated:
        console.print(SIMULATED_NOTE)


@app.command()
def recipes() -> None:
    """List the recipes."""
    from rheobase.recipes import RECIPES

    rows = table("recipe", "network", "data", "T", "epochs", last="what")
    for name, function in RECIPES.items():
        r = function()
        rows.add_row(name, r.network, r.data, str(r.timesteps), str(r.epochs), cleandoc(function.__doc__ or ""))
    console.print(rows, soft_wrap=False)


@app.command()
def plan(
    recipe: RecipeArgument,
    settings: SettingsOption = None,
    memory: Annotated[float, typer.Option(min=1, help="Memory of the GPU in GiB.")] = 80.0,
    processes: Annotated[int, typer.Option(min=1, help="GPUs that share a batch.")] = 1,
    data: Annotated[Path | None, typer.Option(help="Folder with the data set, where its name says too little.")] = None,
) -> None:
    """Predict the memory of training, and the largest batch that a GPU can take."""
    from rheobase import recipes
    from rheobase.train import plan
    from rheobase.train.runs import load_data

    chosen = recipes.get(recipe).changed(settings or [])
    batch = -(-chosen.batch_size // processes)
    free = int((memory - plan.RESERVED_GIB) * 2**30)
    rows = table("memory mode", f"peak with {batch} images", last=f"largest batch in {memory:g} GiB")
    info = load_data(chosen, data).info if data else None
    for variant in plan.modes(chosen):
        peak, largest = plan.peak_bytes(variant, batch, info), plan.largest_batch(variant, free, info)
        rows.add_row(variant.memory, f"{peak / 2**30:.2f} GiB", str(largest))
    console.print(f"{chosen.network}, {chosen.timesteps} timesteps, {chosen.precision}, per GPU")
    console.print(rows, soft_wrap=False)
    console.print(f"{plan.RESERVED_GIB:g} GiB of the memory is set aside for CUDA itself.")


@app.command()
def models() -> None:
    """List the networks."""
    from rheobase.analysis.sizes import summary
    from rheobase.models import MODELS

    rows = table("network", "layers", "parameters", "multiplications\nper step", "default\ninput", last="what for")
    for name in MODELS:
        s = summary(name)
        size = "x".join(map(str, s.shape))
        rows.add_row(name, str(s.layers), f"{s.parameters / 1e6:.2f} M", f"{s.multiplications:.3g}", size, s.purpose)
    console.print(rows, soft_wrap=False)


cli_data.register(app)
cli_deploy.register(app)
cli_analysis.register(app)


def _fit(recipe: "Recipe", *, data: Path | None = None, tensorboard: bool = False, **options: Any) -> "Run":
    from rheobase import train
    from rheobase.train.progress import reporter_for

    reporter = reporter_for(console)
    if tensorboard:
        from rheobase.train.tensorboard import TensorBoard

        reporter = TensorBoard(reporter)
    try:
        run = train.fit(recipe, data=data, reporter=reporter, began=0.0, **options)
    except train.Interrupted as stop:
        errors.print(f"{stop}; continue with: {command_line('train', '--resume', stop.folder, data=data)}")
        raise typer.Exit(130) from None
    if _rank() != 0:
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
    if run.data().simulated:
        console.print(SIMULATED_NOTE)
    console.print(f"run folder {run.folder}")
    if find_spec("matplotlib"):
        from rheobase.report.plots import learning_curves

        learning_curves(rows, run.folder / "curves.png")
        console.print(f"learning curves {run.folder / 'curves.png'}")
    return run


def _print_rates(rates: dict[str, float]) -> None:
    rows = table("layer", last="spikes per neuron and step")
    for layer, rate in rates.items():
        rows.add_row(layer, f"{rate:.3f}")
    console.print(rows, soft_wrap=False)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def main() -> None:
    """Run the command line; an error is one sentence on stderr."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:  # accepted anywhere, though the parser knows it before the command only
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app(arguments, prog_name="rheobase")
    except (ValueError, OSError, RuntimeError) as error:
        if debug:
            raise
        who = f"process {_rank()}: " if _rank() else ""
        errors.print(f"error: {who}{_sentence(error)}", style="red")
        sys.exit(1)


def _sentence(error: Exception) -> str:
    lines = (str(error) or type(error).__name__).strip().splitlines()
    if type(error).__name__ == "OutOfMemoryError":
        return "the GPU is out of memory; try a smaller batch_size, or --set memory=packed or memory=recompute"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot use {error.filename}: {error.strerror}"
    return lines[0]


def _show_warning(message: Warning | str, *details: object) -> None:
    errors.print(f"warning: {message}", style="yellow")
