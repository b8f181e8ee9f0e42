"""The command that prepares a data set, verifies it and shows what is there."""

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli.common import PluginOption, command_line, console, print_next, table

if TYPE_CHECKING:
    from torch import Tensor


def register(app: typer.Typer) -> None:
    app.command()(data)


def data(
    name: Annotated[str, typer.Argument(help="Name of a data set.")],
    root: Annotated[Path | None, typer.Option(help="Folder with its official files.")] = None,
    size: Annotated[int, typer.Option(min=0, help="Side of the images; otherwise that of the paper.")] = 0,
    timesteps: Annotated[int, typer.Option(min=0, help="Slices of a recording; otherwise as in the paper.")] = 0,
    samples: Annotated[int, typer.Option(min=0, help="Pictures to show.")] = 3,
    download: Annotated[bool, typer.Option("--download", help="Get the data set if it is not there.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Prepare a data set, verify it and show what is there."""
    from rheobase.data import load
    from rheobase.data.eventset import EventDataset
    from rheobase.recipes import RECIPES, get
    from rheobase.report.shades import shaded

    found = load(name, root, size=size, timesteps=timesteps, download=download)
    info = found.info
    train, test = (source.labels.bincount(minlength=len(info.classes)).tolist() for source in (found.train, found.test))
    rows = table("class", "training", "test")
    for column in rows.columns[1:]:
        column.justify = "right"
    for row in zip(info.classes, train, test, strict=True):
        rows.add_row(*map(str, row))
    rows.add_row("all", str(sum(train)), str(sum(test)))
    console.print(rows, soft_wrap=False)
    shape = " x ".join(map(str, found.train.shape))
    if isinstance(found, EventDataset):
        cut = found.slicing
        where = "simulated recordings" if info.simulated else "recordings"
        console.print(f"{where} as {shape} (steps, polarities, height, width), {cut.window / 1000:g} ms per step")
        for part, rates in (("training", found.train_rates), ("test", found.test_rates)):
            console.print(f"events per second, {part}: {mean(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})")
        console.print(f"damage in the files: {found.skipped or 'none'}; events beyond 255 in a cell: {found.uncounted}")
    else:
        console.print(f"images of {shape} (channels, height, width)")
    for index in _one_per_class(found.train.labels)[:samples]:
        image = found.train.read(index[None])[0].float()
        console.print(f"\n{info.classes[int(found.train.labels[index])]}")
        console.print(shaded(image.flatten(0, -3).mean(0)))
    trained_by = [recipe for recipe in map(get, RECIPES) if recipe.data == name]
    if trained_by:
        chosen = trained_by[0]
        sized = ("--set", f"image_size={size}") if size not in (0, chosen.image_size) else ()
        print_next((command_line("train", chosen.name, *sized, data=root), "train a network on it"))


def _one_per_class(labels: "Tensor") -> "list[Tensor]":
    return [(labels == label).nonzero()[0, 0] for label in labels.unique()]
