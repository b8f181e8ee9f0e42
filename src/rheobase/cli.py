"""The command line: parse, call, print. Commands import what they need, so that --help is quick."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rheobase import __version__

if TYPE_CHECKING:
    from rheobase.runs import Run

app = typer.Typer(
    help="Train deep spiking neural networks directly (STBP-tdBN).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)

Out = Annotated[Path | None, typer.Option(help="Folder for the run; otherwise the first free runs/NAME-NUMBER.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


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
    out: Out = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
) -> None:
    """Train a small spiking network on the embedded hand-written digits: about a minute on two cores."""
    from rheobase import recipes, train
    from rheobase.progress import reporter_for

    recipe = recipes.get("demo").changed([f"seed={seed}"])
    console.print(f"{recipe.network}, {recipe.timesteps} timesteps, on 1797 hand-written digits", highlight=False)
    run = train.fit(recipe, out=out, device=device, reporter=reporter_for(console))
    _print_result(run)
    console.print("Next:", highlight=False)
    for command, purpose in (
        ("rheobase demo --seed 1", "the same with other random numbers"),
        ("rheobase models", "the networks"),
    ):
        console.print(f"  {command:<28}{purpose}", highlight=False)


def _print_result(run: "Run") -> None:
    last = run.rows()[-1]
    table = Table("layer", "spikes per neuron and step", title="firing rates on the test images", title_justify="left")
    for layer, rate in last["firing_rates"].items():
        table.add_row(layer, f"{rate:.3f}")
    console.print(table)
    best = max(row["test_accuracy"] for row in run.rows() if "test_accuracy" in row)
    console.print(
        f"test accuracy {100 * last['test_accuracy']:.2f} % after the last epoch (best epoch {100 * best:.2f} %)",
        f"run folder    {run.folder}",
        sep="\n",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def models() -> None:
    """List the networks."""
    from rheobase.models import MODELS
    from rheobase.shapes import summary

    table = Table(box=SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    for heading in ("network", "layers", "parameters", "multiplications\nper step", "default\ninput"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what for")
    for name in MODELS:
        s = summary(name)
        size = "x".join(map(str, s.shape))
        table.add_row(name, str(s.layers), f"{s.parameters / 1e6:.2f} M", f"{s.multiplications:.3g}", size, s.purpose)
    console.print(table)


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
        errors.print(f"error: {_sentence(error)}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(1)


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.strip().splitlines()[0]


def _show_warning(message: Warning | str, *details: object) -> None:
    errors.print(f"warning: {message}", style="yellow", highlight=False, soft_wrap=True, markup=False)
