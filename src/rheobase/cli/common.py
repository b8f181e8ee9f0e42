"""Shared by all commands: the terminal, tables, and options that mean the same everywhere."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from rheobase.cli.terminal import Terminal
from rheobase.extras import ended_by_ctrl_c

if TYPE_CHECKING:
    from rheobase.recipes import Recipe

console, errors = Terminal(), Terminal(stderr=True)
PATIENCE = 5.0  # seconds without a word
SIMULATED_NOTE = "the recordings are simulated, so this accuracy says nothing about real ones"

DataOption = Annotated[Path | None, typer.Option(help="Folder with the dataset, or with your own images.")]
DeviceOption = Annotated[str, typer.Option(help="Device to use: auto, cpu, cuda or cuda:N.")]
RUN_HELP = "Folder of a run, or the name of a trained network that comes with the package."
RunArgument = Annotated[Path, typer.Argument(help=RUN_HELP)]
NetworkArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder of a run, file from fold, convert or export, or name of a network that comes with the package."
    ),
]
RECIPE_HELP = "Name of a recipe; `rheobase recipes` lists them."
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe; repeatable."),
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


class _PlainTypes:
    """A command whose help names types in plain words, and none for switches, not even those that typer adds."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif hasattr(param, "display_type"):  # older ones of typer have their own words
                param.display_type = partial(_plain_type, type(param).display_type, param)
        return params


def _plain_type(display: Callable[..., str], param: Any, ctx: Any) -> str:
    """Return <int> for <int range>, <path> for <list[Path]>, <text> for <str>, <item> for <Item>."""
    shown = display(param, ctx=ctx).lower().replace(" range", "").replace("list[", "").replace("]", "")
    return shown.replace("<str>", "<text>")


class Command(_PlainTypes, TyperCommand):
    """One command."""


class Commands(_PlainTypes, TyperGroup):
    """The command line of all commands."""


_plugins: list[str] = []  # given on this command line


def _load_plugins(sources: list[str] | None) -> list[str] | None:
    from rheobase import plugins

    _plugins[:] = sources or []
    with ended_by_ctrl_c():
        for source in _plugins:
            plugins.load(source)
    return sources


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        help="Python file or module that registers your own parts; repeatable.",
        callback=_load_plugins,
    ),
]


def add_command(
    app: typer.Typer,
    function: Callable[..., Any],
    arguments: str = "",
    *,
    name: str | None = None,
    imports: str | None = "torch",
) -> None:
    """Add a command whose help ends with an example: the command with these `arguments`.

    It first `imports` a module that takes long. Ctrl-C is not lost meanwhile.
    """
    words = ["rheobase", name or function.__name__, *([arguments] if arguments else [])]

    @wraps(function)
    def command(*values: Any, **options: Any) -> Any:
        if imports is not None:
            with ended_by_ctrl_c():
                import_module(imports)
        return function(*values, **options)

    app.command(name, cls=Command, epilog=f"Example: {' '.join(words)}")(command)


def table(*headings: str, last: str | None = None) -> Table:
    """Return an empty table. Only its `last` column wraps."""
    found = Table(box=SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    for heading in headings:
        found.add_column(heading, no_wrap=True)
    if last is not None:
        found.add_column(last, overflow="fold")
    return found


def print_json(content: Any) -> None:
    """Print one strict JSON document, with null for NaN and infinity. The command must print nothing else."""
    from rheobase.files import finite_or_null, strict_json

    typer.echo(strict_json(finite_or_null(content), "the output", indent=1))


def print_wrapped(text: str, first: str = "", rest: str = "  ") -> None:
    """Print a paragraph wrapped between words. `first` indents the first line, `rest` all others."""
    if text:
        console.print(fill(text, console.width, initial_indent=first, subsequent_indent=rest))


def print_rates(rates: dict[str, float], recipe: "Recipe | None" = None) -> None:
    """Print the firing rate of every layer. Layers that send no spikes have none: print how many neurons are active."""
    silent = recipe is not None and (recipe.neuron in ("relu", "qcfs") or recipe.normalisation == "neunorm")
    rows = table("layer", last="active neurons" if silent else "spikes per neuron and timestep")
    for layer, rate in rates.items():
        rows.add_row(layer, f"{rate:.3f}")
    console.print(rows, soft_wrap=False)


@contextmanager
def how_far(what: str, parts: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that reports on stderr how many `parts` are done, if the work takes longer than a moment.

    A terminal shows one changing line; other outputs get a new line from time to time.
    """
    said, live = time.monotonic(), None

    def tell(done: int, whole: int) -> None:
        nonlocal said, live
        line = f"{what}: {done} of {whole} {parts} done"
        if live is not None:
            live.update(line)
        elif time.monotonic() - said >= PATIENCE:
            said = time.monotonic()
            if errors.is_terminal and not errors.is_dumb_terminal:
                live = errors.status(line)
                live.start()
            else:
                errors.print(line)

    try:
        yield tell
    finally:
        if live is not None:
            live.stop()


def target_file(path: Path, *kinds: str) -> Path:
    """Return `path` if a file of one of these kinds can be written there. The suffix tells the kind."""
    if path.suffix not in (known := [f".{kind}" for kind in kinds]):
        raise ValueError(f"{path}: expected a file name that ends in {' or '.join(known)}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}; choose another file"
        )
    return path


def counted(number: int, what: str) -> str:
    """Return a number with its noun: 1 epoch, 2 epochs."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return the ordinal of a number: 5 -> 5th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def file_of(source: Path, name: str) -> Path:
    """Return the default path of the output file `name`: inside the run folder, if `source` is one.

    Otherwise the file goes into the current folder and is named after the network. It must not exist yet.
    """
    if source.is_dir():
        return source / name
    rest = name.removeprefix("network")
    own = Path(f"{source.stem}{rest}" if rest != name else f"{source.stem}-{name}")
    if own.exists():
        raise ValueError(f"{own} already exists; choose another file with --out")
    return own


def command_line(*words: object, data: Path | None = None) -> str:
    """Return a rheobase command line to copy, with the plugins of the current one."""
    options = ["--data", str(data)] if data else []
    for source in _plugins:
        options += ["--plugin", source]
    return shlex.join(["rheobase", *map(str, words), *options])


def export_hint(folder: Path, recipe: "Recipe") -> tuple[str, str]:
    """Return the export command that suits the neurons of a run: NIR supports only the hard reset."""
    to, what = ("nir", "neuromorphic hardware") if recipe.reset == "hard" else ("onnx", "other software")
    return command_line("export", folder, "--to", to), f"export for {what}"


def print_next(*hints: tuple[str, str]) -> None:
    """Suggest commands to run next, each with its purpose."""
    console.print("next:")
    width = max(len(line) for line, _ in hints)
    for line, purpose in hints:
        console.print(f"  {line:<{width}}  {purpose}")
