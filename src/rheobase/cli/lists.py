"""The commands that list what there is, and what it would take: recipes, models, plan. `register` adds them."""

from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli.common import RECIPE_HELP, DataOption, DeviceOption, PluginOption, SettingsOption, console, table

if TYPE_CHECKING:
    import torch

    from rheobase.data import DataInfo
    from rheobase.recipes import Recipe


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
    """List the networks."""
    from rheobase.analysis.sizes import summary
    from rheobase.models import MODELS

    rows = table("network", "layers", "parameters", "multiplications\nper step", "default\ninput", last="what for")
    for name in MODELS:
        s = summary(name)
        size = "x".join(map(str, s.shape))
        rows.add_row(name, str(s.layers), f"{s.parameters / 1e6:.2f} M", f"{s.multiplications:.3g}", size, s.purpose)
    console.print(rows, soft_wrap=False)


def plan(
    recipe: Annotated[str, typer.Argument(help=RECIPE_HELP)],
    settings: SettingsOption = None,
    data: DataOption = None,
    memory: Annotated[float, typer.Option(min=1, help="Memory of the GPU in GiB.")] = 80.0,
    processes: Annotated[int, typer.Option(min=1, help="GPUs that share a batch.")] = 1,
    device: DeviceOption = "auto",
    plugin: PluginOption = None,
) -> None:
    """Predict the memory of training, the largest batch that a GPU can take, and the time on this machine."""
    from rheobase import plugins, recipes
    from rheobase.data.expectation import EXPECTED
    from rheobase.train import choose_device, plan
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
    console.print(_time(chosen, info, choose_device(device)))


def _time(recipe: "Recipe", info: "DataInfo | None", device: "torch.device") -> str:
    """What training takes on this machine, in one line."""
    from torch import OutOfMemoryError

    from rheobase.train.plan import duration, times
    from rheobase.train.record import device_name

    name = device_name(device)
    try:
        found = times(recipe, info, device)
    except OutOfMemoryError:
        return f"{name}: a step of {recipe.batch_size} images does not fit its memory"
    parts = [f"{duration(found.step)} per step of {recipe.batch_size} images"]
    if found.epoch is not None and found.recipe is not None:
        parts += [f"{duration(found.epoch)} per epoch", f"{duration(found.recipe)} for the {recipe.epochs} epochs"]
    else:
        parts += ["--data tells how many steps an epoch has"]
    return f"{name}, timed: about {', '.join(parts)}"
