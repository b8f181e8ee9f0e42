"""The commands that list what there is, and what it would take: recipes, models, plan. `register` adds them."""

from dataclasses import asdict
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli.common import (
    RECIPE_HELP,
    DataOption,
    DeviceOption,
    JsonOption,
    PluginOption,
    SettingsOption,
    console,
    print_json,
    print_wrapped,
    table,
)

if TYPE_CHECKING:
    import torch

    from rheobase.data import DataInfo
    from rheobase.recipes import Recipe
    from rheobase.train.plan import Times


def register(app: typer.Typer) -> None:
    for command in (recipes, models, plan):
        app.command()(command)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this recipe.")] = None,
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """List the recipes, or the settings of one with their meanings."""
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
        epochs = "epoch" if r.epochs == 1 else "epochs"
        print_wrapped(f"{name:<{width}}  {r.network} on {r.data}, T = {r.timesteps}, {r.epochs} {epochs}")
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
    console.print("* set by the recipe; --set KEY=VALUE changes any")


def _description(function: object) -> str:
    """The docstring, its paragraphs as one line each."""
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def models(json: JsonOption = False, plugin: PluginOption = None) -> None:
    """List the networks, and the trained ones that come with the package."""
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
    console.print(f"{'':<{width}} {'':6} {'':10} {'per step':>15} input")
    for s in found:
        parameters = f"{s.parameters / 1e6:.2f} M"
        console.print(
            f"{s.name:<{width}} {s.layers:>6} {parameters:>10} {s.multiplications:>15.3g} {'x'.join(map(str, s.shape))}"
        )
        print_wrapped(s.purpose, "  ")
    console.print("\ntrained, with the package:")
    for name, r in recipes.items():
        print_wrapped(f"{name}: {r.network} on {r.data}, T = {r.timesteps}", "  ")


def plan(
    recipe: Annotated[str, typer.Argument(help=RECIPE_HELP)],
    settings: SettingsOption = None,
    data: DataOption = None,
    memory: Annotated[float, typer.Option(min=1, help="Memory of the GPU in GiB.")] = 80.0,
    processes: Annotated[int, typer.Option(min=1, help="GPUs that share a batch.")] = 1,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """Predict the memory of training, the largest batch that a GPU can take, and the time on this machine."""
    from rheobase import plugins, recipes
    from rheobase.data.expectation import EXPECTED
    from rheobase.train import choose_device, plan
    from rheobase.train.record import device_name
    from rheobase.train.runs import load_data

    chosen = recipes.get(recipe).changed(settings or [])
    batch = -(-chosen.batch_size // processes)
    free = int((memory - plan.RESERVED_GIB) * 2**30)
    unknown = plugins.dataset.get(chosen.data) not in EXPECTED  # what it looks like, before it is loaded
    info = load_data(chosen, data).info if data or unknown else None
    modes = [
        {
            "memory": variant.memory,
            "peak_bytes": plan.peak_bytes(variant, batch, info),
            "largest_batch": plan.largest_batch(variant, free, info),
        }
        for variant in plan.modes(chosen)
    ]
    where = choose_device(device)
    times = _times(chosen, info, where)
    if json:
        print_json(
            {
                "recipe": asdict(chosen),
                "processes": processes,
                "batch_per_process": batch,
                "gpu_bytes": int(memory * 2**30),
                "reserved_bytes": int(plan.RESERVED_GIB * 2**30),
                "modes": modes,
                "device": device_name(where),
                "seconds": None if times is None else asdict(times),
            }
        )
        return
    rows = table("memory mode", f"peak with {batch} images", last=f"largest batch in {memory:g} GiB")
    for mode in modes:
        rows.add_row(str(mode["memory"]), f"{int(mode['peak_bytes']) / 2**30:.2f} GiB", str(mode["largest_batch"]))
    console.print(f"{chosen.network}, {chosen.timesteps} timesteps, {chosen.precision}, per GPU")
    console.print(rows, soft_wrap=False)
    console.print(f"{plan.RESERVED_GIB:g} GiB of the memory is set aside for CUDA itself.")
    console.print(f"{device_name(where)}{_timed(chosen, times)}")


def _times(recipe: "Recipe", info: "DataInfo | None", device: "torch.device") -> "Times | None":
    """What training takes on this machine; None if its memory is too small."""
    from torch import OutOfMemoryError

    from rheobase.train.plan import times

    try:
        return times(recipe, info, device)
    except OutOfMemoryError:
        return None


def _timed(recipe: "Recipe", found: "Times | None") -> str:
    from rheobase.train.plan import duration

    if found is None:
        return f": a step of {recipe.batch_size} images does not fit its memory"
    parts = [f"{duration(found.step)} per step of {recipe.batch_size} images"]
    if found.epoch is not None and found.recipe is not None:
        parts += [f"{duration(found.epoch)} per epoch", f"{duration(found.recipe)} for the {recipe.epochs} epochs"]
    else:
        parts += ["--data tells how many steps an epoch has"]
    return f", timed: about {', '.join(parts)}"
