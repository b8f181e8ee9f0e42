"""The command line: parse, call a task, print. Commands import what they need when they run, so --help is fast."""

import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer

from rheobase import __version__, plugins
from rheobase.cli import analysis, compare, data, deploy, evaluate, lists, plan, train
from rheobase.cli.common import Commands, errors
from rheobase.cli.terminal import one_line

__all__ = ["app", "main"]

UsageError: Any = typer.BadParameter.__base__  # typer has a parser of its own, or uses click, and does not export this

SMALLER = {
    **dict.fromkeys(("train", "plan"), "a smaller batch_size or fewer timesteps"),
    **dict.fromkeys(("analyze", "convert", "report", "verify"), "fewer --images"),
    "eval": "fewer --timesteps",
}
"""With what a command needs less memory."""

app = typer.Typer(
    cls=Commands,
    help="Train deep spiking neural networks directly (STBP-tdBN).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The command line, to call from Python: `app(["train", "demo"], standalone_mode=False)`."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rheobase {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


for group in (train, evaluate, compare, lists, plan, data, deploy, analysis):
    group.register(app)


def main() -> None:
    """Run the command line and report an error as one sentence on stderr."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:  # allowed anywhere, but the parser accepts it only before the command
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        sys.exit(app(arguments, prog_name="rheobase", standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):  # before the parser starts, or after it ends
        sys.exit(128 + signal.SIGINT)
    except UsageError as error:
        if arguments:  # otherwise it has shown its help
            errors.print(one_line(f"error: {_usage(error)}"), style="red")
        sys.exit(error.exit_code)
    except Exception as error:
        place = plugins.place(error)
        if debug or not (place or isinstance(error, ValueError | OSError | RuntimeError | MemoryError)):
            raise
        if getattr(error, "quiet", False):  # another process reports it
            sys.exit(1)
        rank = os.environ.get("RANK", "0")
        who = f"process {rank}: " if rank != "0" else ""
        what = _sentence(error, next((word for word in arguments if not word.startswith("-")), ""))
        if place:
            what = f"{place}: {'' if isinstance(error, ValueError) else f'{type(error).__name__}: '}{what}"
        errors.print(one_line(f"error: {who}{what}"), style="red")
        sys.exit(1)


def _usage(error: Any) -> str:
    """What is wrong with a command line, and where its help is."""
    what = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")  # choices come as lines
    command = error.ctx.command_path if error.ctx else "rheobase"
    return f"{what[:1].lower()}{what[1:]}{' See' if what.endswith('?') else '; see'} {command} --help"


def _sentence(error: Exception, command: str) -> str:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch raises a plain RuntimeError
        return f"out of memory; {_what_helps(command, 'a machine with more memory')}"
    if type(error).__name__ == "OutOfMemoryError":
        other = "--set memory=packed or memory=recompute" if command == "train" else "--device cpu"
        return f"the GPU is out of memory; {_what_helps(command, other)}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot use {error.filename}: {error.strerror}"
    text = (str(error) or type(error).__name__).strip()
    # our own messages are one sentence, even if a name in it has line breaks; other libraries may write pages
    return text if isinstance(error, ValueError | OSError) else text.splitlines()[0]


def _what_helps(command: str, other: str) -> str:
    return f"try {f'{SMALLER[command]}, or ' if command in SMALLER else ''}{other}"


def _show_warning(message: Warning | str, *details: object) -> None:
    errors.print(one_line(f"warning: {message}"), style="yellow")
