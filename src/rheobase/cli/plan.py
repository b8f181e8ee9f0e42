"""The command `plan`: what a training run would cost."""

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheobase.cli.common import (
    RECIPE_HELP,
    DataOption,
    DeviceOption,
    JsonOption,
    PluginOption,
    SettingsOption,
    add_command,
    console,
    counted,
    print_json,
    print_wrapped,
    table,
)

if TYPE_CHECKING:
    import torch

    from rheobase.data import DataInfo
    from rheobase.recipes import Recipe
    from rheobase.train.plan import Times
    from rheobase.train.scale import Forecast


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    add_command(app, plan, "imagenet_resnet34 --gpus 8 --nodes 2")


def plan(
    recipe: Annotated[str, typer.Argument(help=RECIPE_HELP)],
    settings: SettingsOption = None,
    data: DataOption = None,
    memory: Annotated[float, typer.Option(help="Memory of each GPU in GiB.")] = 80.0,
    gpus: Annotated[int, typer.Option(help="GPUs per node; all GPUs share one batch.")] = 1,
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    link: Annotated[
        float | None, typer.Option(help="Network bandwidth of a node in GB/s; default: 50 per GPU.")
    ] = None,
    latency: Annotated[
        float | None, typer.Option(help="Network latency between nodes in microseconds; default: 5.")
    ] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """Predict memory, largest batch and training time, here and on one or many H200 GPUs."""
    from rheobase import plugins, recipes
    from rheobase.data import expected
    from rheobase.data.expectation import EXPECTED
    from rheobase.train import choose_device, plan, scale
    from rheobase.train.progress import Waiting
    from rheobase.train.record import device_name
    from rheobase.train.runs import load_data
    from rheobase.train.step import for_device

    if not 1 <= memory < inf:
        raise ValueError(f"--memory: expected at least 1 GiB, got {memory:g}")
    cluster = scale.cluster(gpus, nodes, link, latency)
    chosen = recipes.get(recipe).changed(settings or [])
    unknown = plugins.dataset.get(chosen.data) not in EXPECTED  # its shape is unknown until it is loaded
    if data or unknown:
        info = load_data(chosen, data).info
    else:
        info = expected(chosen.data, size=chosen.image_size, timesteps=chosen.timesteps)
    batch, grouped = scale.share(chosen, info, cluster), cluster.world > 1
    free = int((memory - plan.RESERVED_GIB) * 2**30)
    modes: list[dict[str, Any]] = [
        {
            "memory": variant.memory,
            "peak_bytes": plan.peak_bytes(variant, batch, info, grouped=grouped),
            "largest_batch": plan.largest_batch(variant, free, info, grouped=grouped),
        }
        for variant in plan.modes(chosen)
    ]
    where = choose_device(device)
    computed = for_device(chosen, where)
    timed = where.type == "cuda" or not grouped  # a CPU would take minutes and say nothing about many GPUs
    timesteps = plan.timed_timesteps(chosen, where)
    waiting = Waiting()
    times = _times(chosen, info, where) if timed else None
    busy = waiting.describe() if timed else ""
    forecast = scale.forecast(chosen, info, cluster, times.step if times and where.type == "cuda" else None)
    if json:
        print_json(
            {
                "recipe": asdict(chosen),
                "gpus": gpus,
                "nodes": nodes,
                "batch_per_gpu": batch,
                "gpu_bytes": int(memory * 2**30),
                "reserved_bytes": int(plan.RESERVED_GIB * 2**30),
                "modes": modes,
                "device": device_name(where),
                "seconds": None if times is None else asdict(times),
                "precision": computed.precision,
                "timed_timesteps": timesteps,
                "busy": bool(busy),
                "scale": asdict(forecast),
            }
        )
        return
    rows = table("memory mode", f"peak with {batch} images", last=f"largest batch in {memory:g} GiB")
    for mode in modes:
        rows.add_row(mode["memory"], f"{mode['peak_bytes'] / 2**30:.2f} GiB", str(mode["largest_batch"]))
    console.print(f"{chosen.network}, {chosen.timesteps} timesteps, {chosen.precision}, per GPU")
    console.print(rows, soft_wrap=False)
    console.print(f"{plan.RESERVED_GIB:g} GiB is reserved for CUDA itself.")
    if timed:
        images = plan.images_per_step(chosen, info)
        console.print(f"{device_name(where)}{_timed(computed, times, images, timesteps)}{busy}")
    (largest,) = (mode["largest_batch"] for mode in modes if mode["memory"] == chosen.memory)
    _print_forecast(chosen, forecast, device_name(where), computed.precision, largest)


def _times(recipe: "Recipe", info: "DataInfo", device: "torch.device") -> "Times | None":
    """Measure how long training takes on this machine; return None if its memory is too small."""
    from torch import OutOfMemoryError

    from rheobase.train.plan import times

    try:
        return times(recipe, info, device)
    except OutOfMemoryError:
        return None


def _timed(recipe: "Recipe", found: "Times | None", images: int, timesteps: int) -> str:
    from rheobase.train.plan import duration

    if found is None:
        return f": a step of {images} images does not fit in its memory"
    fewer = f" with {timesteps} of {recipe.timesteps} timesteps" if timesteps < recipe.timesteps else ""
    told = f", measured in {recipe.precision}{fewer}: about {duration(found.step)} per step of {images} images"
    if found.epoch is None or found.recipe is None:
        return f"{told}; give --data for the time of an epoch"
    return f"{told}, {duration(found.epoch)} per epoch, {duration(found.recipe)} for {counted(recipe.epochs, 'epoch')}"


def _print_forecast(recipe: "Recipe", forecast: "Forecast", here: str, precision: str, largest_batch: int) -> None:
    """Print the forecast. Mark batches above `largest_batch`.

    If a step was timed on the GPU `here`, in this precision, the forecast is scaled to it.
    """
    from rheobase.train.plan import duration

    rows = table("GPUs", "images each", "step", "waiting", "images/s", "efficiency", "all epochs", "step is")
    for p in forecast.predictions:
        rows.add_row(
            str(p.gpus) if p.nodes == 1 else f"{p.nodes} x {p.gpus}",
            f"{p.batch}{'*' if p.batch > largest_batch else ''}",
            f"{1e3 * p.step:.3g} ms",
            f"{1e3 * (p.statistics + p.gradients):.2g} ms",
            f"{p.images_per_second:.0f}",
            f"{100 * p.efficiency:.0f} %",
            "-" if p.recipe is None else duration(p.recipe),
            p.kind,
        )
    asked = forecast.predictions[-1]
    console.print(f"\n{forecast.device if forecast.pace is None else here}, predicted, without evaluation:")
    console.print(rows, soft_wrap=False)
    sentences = [f"One GPU's step of {asked.batch} images is {asked.kind}: {asked.basis}, {forecast.precision}."]
    if forecast.pace is not None:
        sentences.append(
            f"It is the step time of an {forecast.device} times {forecast.pace:.2f}, "
            f"because the whole batch was timed here, in {precision}."
        )
    elif forecast.precision != recipe.precision:
        sentences.append(f"The time with {recipe.precision} differs.")
    if any(p.batch > largest_batch for p in forecast.predictions):
        sentences.append(f"Batches marked * do not fit with memory={recipe.memory}.")
    if asked.gpus * asked.nodes > 1:
        sentences.append(
            f"A step runs {forecast.collectives} collectives of {forecast.bytes / 1e6:.3g} MB in total. It waits "
            f"{1e3 * asked.statistics:.2g} ms for statistics and {1e3 * asked.gradients:.2g} ms for gradients."
        )
    print_wrapped(" ".join(sentences), rest="")
