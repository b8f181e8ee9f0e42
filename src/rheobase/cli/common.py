"""What the groups of commands share: the terminal, tables, and options of the same meaning."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from rheobase.cli.terminal import Terminal
from rheobase.extras import ended_by_ctrl_c

if TYPE_CHECKING:
    from rheobase.recipes import Recipe

console, errors = Terminal(), Terminal(stderr=True)
PATIENCE = 5.0  # seconds without a word

DataOption = Annotated[Path | None, typer.Option(help="Folder with the data set, or with images of your own.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RUN_HELP = "Folder of a run, or the name of a trained network that comes with the package."
RunArgument = Annotated[Path, typer.Argument(help=RUN_HELP)]
NetworkArgument = Annotated[
    Path,
    typer.Argument(help="Folder of a run, a file of fold, convert or export, or the name of a network of the package."),
]
RECIPE_HELP = "Name of a recipe; `rheobase recipes` lists them."
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for other programs.")]

_plugins: list[str] = []  # of this command line


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
        help="Python file or module with parts of your own; see docs/plugins.md.",
        callback=_load_plugins,
    ),
]


def table(*headings: str, last: str | None = None) -> Table:
    """Columns that keep their lines whole, but for the `last` one."""
    found = Table(box=SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    for heading in headings:
        found.add_column(heading, no_wrap=True)
    if last is not None:
        found.add_column(last, overflow="fold")
    return found


def print_json(content: Any) -> None:
    """One strict JSON document, for a command that prints nothing else; what is not a number is null."""
    from rheobase.files import finite_or_null, strict_json

    typer.echo(strict_json(finite_or_null(content), "the output", indent=1))


def print_wrapped(text: str, first: str = "", rest: str = "  ") -> None:
    """A paragraph in lines that fit, broken between words; `first` and `rest` begin the first and the others."""
    if text:
        console.print(fill(text, console.width, initial_indent=first, subsequent_indent=rest))


@contextmanager
def how_far(what: str, parts: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how many `parts` of how many are done: what takes longer says so on stderr.

    A terminal has one line that changes, anything else a new one from time to time.
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


def target_file(path: Path, kind: str) -> Path:
    """`path`, if a file of that kind can be written there: it is told by its name."""
    if path.suffix != f".{kind}":
        raise ValueError(f"{path}: expected the name of a file that ends in .{kind}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path}: {'a folder' if path.is_dir() else 'its folder is not there'}; choose another file")
    return path


def ordinal(number: int) -> str:
    """5 -> 5th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def file_of(source: Path, name: str) -> Path:
    """Where a command writes the file `name` about a network by itself: into the folder of its run.

    For any other network it is here, named after the network, and must not be there yet.
    """
    if source.is_dir():
        return source / name
    rest = name.removeprefix("network")
    own = Path(f"{source.stem}{rest}" if rest != name else f"{source.stem}-{name}")
    if own.exists():
        raise ValueError(f"{own} is there already; choose another file with --out")
    return own


def command_line(*words: object, data: Path | None = None) -> str:
    """A command line of ours, to be copied; it names the plugins of this one."""
    options = ["--data", str(data)] if data else []
    for source in _plugins:
        options += ["--plugin", source]
    return shlex.join(["rheobase", *map(str, words), *options])


def export_hint(folder: Path, recipe: "Recipe") -> tuple[str, str]:
    """The export that can express the neurons of a run: NIR has the hard reset alone."""
    to, what = ("nir", "neuromorphic hardware") if recipe.reset == "hard" else ("onnx", "other software")
    return command_line("export", folder, "--to", to), f"the network for {what}"


def print_next(*hints: tuple[str, str]) -> None:
    """Commands that may come next, and what for."""
    console.print("next:")
    width = max(len(line) for line, _ in hints)
    for line, purpose in hints:
        console.print(f"  {line:<{width}}  {purpose}")
