"""The commands that list what there is, and what it would take: recipes, models, plan. `register` adds them."""

from inspect import cleandoc
from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli.common import RECIPE_HELP, DataOption, PluginOption, SettingsOption, console, table


def register(app: typer.Typer) -> None:
    for command in (recipes, models, plan):
        app.command()(command)


def recipes(plugin: PluginOption = None) -> None:
    """List the recipes."""
    from rheobase.recipes import RECIPES, get

    rows = table("recipe", "network", "data", "T", "epochs", last="what")
    for name, function in RECIPES.items():
        r = get(name)
        rows.add_row(name, r.network, r.data, str(r.timesteps), str(r.epochs), cleandoc(function.__doc__ or ""))
    console.print(rows, soft_wrap=False)


def models(plugin: PluginOption = None) -> None:
    """List the networks, and the trained ones that come with the package."""
    from rheobase.analysis.sizes import summary
    from rheobase.deploy import shipped
    from rheobase.models import MODELS
    from rheobase.train.runs import Run

    rows = table("network", "layers", "parameters", "multiplications\nper step", "default\ninput", last="what for")
    for name in MODELS:
        s = summary(name)
        size = "x".join(map(str, s.shape))
        rows.add_row(name, str(s.layers), f"{s.parameters / 1e6:.2f} M", f"{s.multiplications:.3g}", size, s.purpose)
    console.print(rows, soft_wrap=False)
    rows = table("trained network", "network", "data", last="T")
    for name in shipped.names():
        recipe = Run(shipped.find(Path(name))).recipe
        rows.add_row(name, recipe.network, recipe.data, str(recipe.timesteps))
    console.print(rows, soft_wrap=False)


def plan(
    recipe: Annotated[str, typer.Argument(help=RECIPE_HELP)],
    settings: SettingsOption = None,
    data: DataOption = None,
    memory: Annotated[float, typer.Option(min=1, help="Memory of the GPU in GiB.")] = 80.0,
    processes: Annotated[int, typer.Option(min=1, help="GPUs that share a batch.")] = 1,
    plugin: PluginOption = None,
) -> None:
    """Predict the memory of training, and the largest batch that a GPU can take."""
    from rheobase import plugins, recipes
    from rheobase.data.expectation import EXPECTED
    from rheobase.train import plan
    from rheobase.train.runs import load_data

    chosen = recipes.get(recipe).changed(settings or [])
    batch = -(-chosen.batch_size // processes)
    free = int((memory - plan.RESERVED_GIB) * 2**30)
    rows = table("memory mode", f"peak with {batch} images", last=f"largest batch in {memory:g} GiB")
    unknown = plugins.dataset.get(chosen.data) not in EXPECTED  # what it looks like, before it is loaded
    info = load_data(chosen, data).info if data or unknown else None
    for variant in plan.modes(chosen):
        peak, largest = plan.peak_bytes(variant, batch, info), plan.largest_batch(variant, free, info)
        rows.add_row(variant.memory, f"{peak / 2**30:.2f} GiB", str(largest))
    console.print(f"{chosen.network}, {chosen.timesteps} timesteps, {chosen.precision}, per GPU")
    console.print(rows, soft_wrap=False)
    console.print(f"{plan.RESERVED_GIB:g} GiB of the memory is set aside for CUDA itself.")
