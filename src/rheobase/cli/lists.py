"""The commands `recipes` and `models`, which list what is available."""

from dataclasses import asdict
from inspect import cleandoc
from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli.common import (
    JsonOption,
    PluginOption,
    add_command,
    console,
    counted,
    print_json,
    print_wrapped,
    table,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    add_command(app, recipes, "cifar10_resnet19_t2", imports=None)
    add_command(app, models)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this recipe.")] = None,
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """List the recipes, or explain the settings of one."""
    from rheobase.recipes import RECIPES, get

    if name is not None:
        _recipe(name, json)
        return
    found = {name: (get(name), _description(function)) for name, function in RECIPES.items()}
    if json:
        print_json({"recipes": [asdict(r) | {"description": words} for r, words in found.values()]})
        return
    width = max(map(len, found))
    for name, (r, words) in found.items():
        print_wrapped(f"{name:<{width}}  {r.network} on {r.data}, T = {r.timesteps}, {counted(r.epochs, 'epoch')}")
        print_wrapped(words.partition("\n\n")[0], "  ")


def _recipe(name: str, json: bool) -> None:
    from rheobase.recipes import RECIPES, get
    from rheobase.recipes.settings import as_text, settings

    found, words = settings(get(name)), _description(RECIPES[name])
    if json:
        print_json({"name": name, "description": words, "settings": [asdict(s) for s in found]})
        return
    console.print(name)
    for paragraph in words.split("\n\n"):
        print_wrapped(paragraph, "  ")
    rows = table("", "setting", "value", "default", last="meaning")
    for s in found:
        meaning = f"{s.meaning} One of {', '.join(s.choices)}." if s.choices else s.meaning
        default = "" if s.default is None else as_text(s.default)
        rows.add_row("*" if s.changed else "", s.name, as_text(s.value), default, meaning)
    console.print(rows, soft_wrap=False)
    console.print("* set by the recipe; change any setting with --set KEY=VALUE")


def _description(function: object) -> str:
    """Return the docstring with each paragraph on one line."""
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def models(json: JsonOption = False, plugin: PluginOption = None) -> None:
    """List the networks, and the trained networks that come with the package."""
    from rheobase.analysis.sizes import summary
    from rheobase.deploy import shipped
    from rheobase.models import MODELS
    from rheobase.train.runs import Run

    found = [summary(name) for name in MODELS]
    recipes = {name: Run(shipped.find(Path(name))).recipe for name in shipped.names()}
    if json:
        keys = ("network", "data", "timesteps")
        trained = [{"name": name} | {key: getattr(r, key) for key in keys} for name, r in recipes.items()]
        print_json({"models": [asdict(s) for s in found], "trained": trained})
        return
    width = max(len(s.name) for s in found)
    console.print(f"{'network':<{width}} layers parameters multiplications default")
    console.print(f"{'':<{width}} {'':6} {'':10} {'per timestep':>15} input")
    for s in found:
        parameters = f"{s.parameters / 1e6:.2f} M"
        console.print(
            f"{s.name:<{width}} {s.layers:>6} {parameters:>10} {s.multiplications:>15.3g} {'x'.join(map(str, s.shape))}"
        )
        print_wrapped(s.purpose, "  ")
    console.print("\ntrained networks that come with the package:")
    for name, r in recipes.items():
        print_wrapped(f"{name}: {r.network} on {r.data}, T = {r.timesteps}", "  ")
