"""Write the reference of the documentation site from the code: commands, recipes, settings, Python.

python -m tools.reference prints it. tools/pages.py puts it on the site.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from inspect import signature
from itertools import pairwise
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, get_args, get_origin

from typer.models import OptionInfo

from rheobase.cli import app
from rheobase.recipes import RECIPES, get
from rheobase.recipes.recipe import Recipe
from rheobase.recipes.settings import Setting, as_text, settings
from tools.documents import table

# The public modules, one page per room. Everything else may change from one version to the next.
PYTHON: dict[str, tuple[str, ...]] = {
    "functional": ("functional",),
    "nn": ("nn",),
    "models": ("models",),
    "plugins": ("plugins",),
    "data": ("data", "data.events", "data.files", "data.decoding"),
    "training": ("recipes", "train", "train.runs", "train.casting"),
    "deploy": (
        "deploy", "deploy.quantize", "deploy.formats", "deploy.formats.native", "deploy.formats.nir",
        "deploy.formats.onnx", "deploy.nirfile", "deploy.simulate", "deploy.agreement", "deploy.importers",
    ),
    "convert": ("convert",),
    "tasks": ("tasks.open", "tasks.evaluate", "tasks.export", "tasks.verify", "tasks.inspect", "tasks.compare"),
    "analysis": (
        "analysis.sizes", "analysis.activity", "analysis.operations", "analysis.isometry", "analysis.distributions",
    ),
    "kernels": ("kernels",),
    "cli": ("cli",),
}  # fmt: skip


def pages() -> dict[str, str]:
    """Return all pages by name."""
    written = {"commands": commands(), "recipes": recipes(), "settings": all_settings()}
    return written | {page: python(page) for page in PYTHON}


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command."""

    name: str
    flags: tuple[str, ...]
    """Empty for an argument."""
    value: str
    """What it takes, in words; empty for a switch."""
    choices: tuple[str, ...]
    several: bool
    required: bool
    default: Any
    meaning: str


def command_lines() -> dict[str, list[Parameter]]:
    """Return every command with its parameters, as its function defines them."""
    return {name: [*map(_parameter, signature(f).parameters.values())] for name, f in functions().items()}


def functions() -> dict[str, Callable[..., Any]]:
    """Return every command with the function behind it."""
    return {name: function for name, function, _ in _registered()}


def examples() -> dict[str, str]:
    """Return every command with the example at the end of its help."""
    return {name: epilog.removeprefix("Example: ") for name, _, epilog in _registered()}


def _registered() -> Iterator[tuple[str, Callable[..., Any], str]]:
    for command in app.registered_commands:
        if command.callback is not None:
            yield command.name or command.callback.__name__, command.callback, command.epilog or ""


def _parameter(parameter: inspect.Parameter) -> Parameter:
    annotation, info = get_args(parameter.annotation)
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    kind = kinds[0] if get_origin(annotation) is UnionType else annotation  # X | None
    several = get_origin(kind) is list
    kind = get_args(kind)[0] if several else kind
    choices = tuple(kind) if issubclass(kind, StrEnum) else ()
    # Typer keeps the first flag of an annotation as its default
    named = [flag for flag in (info.default, *(info.param_decls or ())) if isinstance(flag, str)]
    flags = tuple(named or [f"--{parameter.name.replace('_', '-')}"]) if isinstance(info, OptionInfo) else ()
    words = info.metavar or {str: "text", int: "whole number", float: "number", Path: "path"}.get(kind, "")
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    return Parameter(parameter.name, flags, words, choices, several, required, default, info.help or "")


def commands() -> str:
    """Write the page of the commands: usage, an example, arguments and options."""
    words = "`rheobase COMMAND --help` shows the same in a terminal. With `--debug`, an error comes with its traceback."
    parts = ["# Commands", words]
    for name, parameters in command_lines().items():
        line = " ".join([f"rheobase {name}", *(_argument(p) for p in parameters if not p.flags), "[OPTIONS]"])
        parts += [f"## {name}", inspect.cleandoc(functions()[name].__doc__ or ""), f"```console\n{line}\n```"]
        parts += ["Example:", f"```console\n{examples()[name]}\n```"]
        own = sorted(parameters, key=lambda p: bool(p.flags))
        rows = [(_name(p), _values(p), _default(p), _meaning(p.meaning)) for p in own]
        parts.append(listing(("argument or option", "value", "default", "meaning"), rows))
    return _joined(parts)


def recipes() -> str:
    """Write the page of the recipes and the settings that they change."""
    parts = [
        "# Recipes",
        "A recipe holds everything that decides the outcome of a run: `rheobase train NAME`. The tables list the "
        "settings that differ from the [defaults](settings.md). `--set KEY=VALUE` changes any setting.",
    ]
    for name, function in RECIPES.items():
        changed = [s for s in settings(get(name)) if s.changed]
        rows = [(f"`{s.name}`", f"`{as_text(s.value)}`", s.meaning) for s in changed]
        parts += [
            f"## {name}",
            inspect.cleandoc(function.__doc__ or ""),
            listing(("setting", "value", "meaning"), rows),
        ]
    return _joined(parts)


def all_settings() -> str:
    """Write the page of the settings of a recipe: type, default, meaning."""
    kinds = inspect.get_annotations(Recipe)
    rows = [
        (f"`{s.name}`", _kind(s, kinds[s.name]), "" if s.default is None else f"`{as_text(s.default)}`", s.meaning)
        for s in settings(get(next(iter(RECIPES))))
    ]
    words = (
        "The settings of a recipe. Every recipe states those without a default. `--set KEY=VALUE` changes any setting."
    )
    return _joined(["# Settings", words, listing(("setting", "type", "default", "meaning"), rows)])


def python(page: str) -> str:
    """Write the page of a room: its public modules and their names. mkdocstrings fills in their docstrings."""
    parts = [] if len(PYTHON[page]) == 1 else [f"# {page.capitalize()}"]
    for name in PYTHON[page]:
        module = import_module(f"rheobase.{name}")
        parts += [f"{'##' if parts else '#'} {module.__name__}", inspect.cleandoc(module.__doc__ or "")]
        parts += [f"::: {module.__name__}.{own}" for own in public(module)]
    return _joined(parts)


def public(module: ModuleType) -> list[str]:
    """Return the public names of a module: those in `__all__`, or else the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def undocumented() -> Iterator[str]:
    """Yield public modules, names and methods without a docstring."""
    for name in (name for modules in PYTHON.values() for name in modules):
        module = import_module(f"rheobase.{name}")
        if not module.__doc__:
            yield module.__name__
        for own in public(module):
            value = getattr(module, own)
            if not (inspect.isclass(value) or inspect.isroutine(value)):
                if not _has_text_below(module, own):
                    yield f"{module.__name__}.{own}"
                continue
            if not _own_text(value):
                yield f"{module.__name__}.{own}"
            if inspect.isclass(value):
                yield from (f"{module.__name__}.{own}.{method}" for method in _silent_methods(value))


def _own_text(value: Any) -> str:
    """Return the docstring of a function or class. The text that a dataclass generates does not count."""
    text = vars(value).get("__doc__", value.__doc__) or ""
    return "" if text.startswith(f"{value.__name__}(") else text


def _silent_methods(kind: type) -> Iterator[str]:
    """Yield public methods and properties without a docstring. An override may inherit its docstring."""
    for name, value in vars(kind).items():
        routine = inspect.isroutine(value) or isinstance(value, property)
        if routine and not name.startswith("_") and not inspect.getdoc(getattr(kind, name)):
            yield name


def _has_text_below(module: ModuleType, name: str) -> bool:
    """Return whether a constant has a text below its definition: Python keeps no docstrings of constants."""
    for place in (module, *_imported_from(module, name)):
        body = _body(place)
        for statement, after in pairwise(body):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    return False


def _imported_from(module: ModuleType, name: str) -> Iterator[ModuleType]:
    for statement in _body(module):
        if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
            yield import_module(str(statement.module))


@cache
def _body(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def listing(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table whose cells may contain bars and line breaks."""
    return table(headings, [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows])


def _argument(parameter: Parameter) -> str:
    words = f"{parameter.name.upper()}{'...' if parameter.several else ''}"
    return words if parameter.required else f"[{words}]"


def _name(parameter: Parameter) -> str:
    return ", ".join(f"`{flag}`" for flag in parameter.flags) or f"`{_argument(parameter)}`"


def _values(parameter: Parameter) -> str:
    return ", ".join(f"`{choice}`" for choice in parameter.choices) or parameter.value.replace("|", ", ")


def _default(parameter: Parameter) -> str:
    return "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"


def _meaning(text: str) -> str:
    """Mark the options that a text names as code, which a browser does not break after its hyphens."""
    plain_and_code = text.split("`")
    plain_and_code[::2] = [re.sub(r"(?<!\S)--[a-z][a-z-]*", "`\\g<0>`", plain) for plain in plain_and_code[::2]]
    return "`".join(plain_and_code)


def _kind(setting: Setting, annotation: Any) -> str:
    if setting.choices:
        return "one of " + ", ".join(f"`{choice}`" for choice in setting.choices)
    return {int: "whole number", float: "number", bool: "true or false", str: "name"}[annotation]


def _joined(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for text in pages().values():
        print(text)
