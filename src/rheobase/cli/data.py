"""The commands `data`, `recording` and `pack`: prepare and check a dataset, inspect recordings, pack images."""

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli.common import (
    PluginOption,
    add_command,
    command_line,
    console,
    counted,
    print_next,
    table,
    target_file,
)
from rheobase.cli.terminal import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from rheobase.data.events.summary import Summary

SensorOption = Annotated[str, typer.Option(help="Sensor size, such as 346x260, if the files do not state it.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    add_command(app, data, "cifar10 --root cifar10 --download")
    add_command(app, recording, "clip.aedat4 --out clip.png")
    add_command(app, pack, "photos --out photos-packed")


def data(
    name: Annotated[str, typer.Argument(help="Name of a dataset.")],
    root: Annotated[Path | None, typer.Option(help="Folder with the files of the dataset.")] = None,
    size: Annotated[int, typer.Option(min=0, help="Side of the images in pixels; 0: as in the paper.")] = 0,
    timesteps: Annotated[int, typer.Option(min=0, help="Slices per recording; 0: as in the paper.")] = 0,
    slice_by: Annotated[str, typer.Option(help="Slices of equal duration (time) or event count (count).")] = "time",
    window: Annotated[int, typer.Option(min=0, help="Microseconds or events per slice; 0: the default.")] = 0,
    sensor: SensorOption = "none",
    samples: Annotated[int, typer.Option(min=0, help="Number of samples to draw.")] = 3,
    download: Annotated[bool, typer.Option("--download", help="Download the dataset if it is missing.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Prepare a dataset, check it and show what it contains."""
    from rheobase.data import load
    from rheobase.data.eventset import EventDataset
    from rheobase.recipes import RECIPES, get
    from rheobase.report.shades import shaded

    options = {"slice_by": (slice_by, "time"), "window": (window, 0), "sensor": (sensor, "none")}
    chosen = {option: value for option, (value, default) in options.items() if value != default}
    found = load(name, root, size=size, timesteps=timesteps, download=download, **chosen)
    info = found.info
    train, test = (source.labels.bincount(minlength=len(info.classes)).tolist() for source in (found.train, found.test))
    rows = table("class", "training", "test")
    rows.columns[0].no_wrap, rows.columns[0].overflow = False, "fold"  # a long name leaves room for the numbers
    for column in rows.columns[1:]:
        column.justify = "right"
    for label, *counts in zip(map(one_line, info.classes), train, test, strict=True):
        rows.add_row(label, *map(str, counts))
    rows.add_row("all", str(sum(train)), str(sum(test)))
    console.print(rows, soft_wrap=False)
    shape = " x ".join(map(str, found.train.shape))
    if isinstance(found, EventDataset):
        where = "simulated recordings" if info.simulated else "recordings"
        console.print(f"{where} as {shape} (timesteps, polarities, height, width), {found.slicing}")
        for part, rates in (("training", found.train_rates), ("test", found.test_rates)):
            console.print(f"events per second, {part}: {mean(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})")
        console.print(f"damage in the files: {found.skipped or 'none'}; events above 255 per cell: {found.uncounted}")
    else:
        console.print(f"images of {shape} (channels, height, width)")
    for index in _one_per_class(found.train.labels)[:samples]:
        image = found.train.read(index[None])[0].float()
        console.print(f"\n{one_line(info.classes[int(found.train.labels[index])])}")
        console.print(shaded(image.flatten(0, -3).mean(0)))
    trained_by = [found for found in map(get, RECIPES) if found.data == name]
    if trained_by:
        recipe = trained_by[0]
        sizes = {"image_size": size, "timesteps": timesteps}
        settings = {**chosen, **{k: v for k, v in sizes.items() if v not in (0, getattr(recipe, k))}}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        print_next((command_line("train", recipe.name, *words, data=root), "train a network on this dataset"))


def recording(
    files: Annotated[list[Path], typer.Argument(help="Event-camera recordings.")],
    sensor: SensorOption = "none",
    gap: Annotated[float, typer.Option(min=0.001, help="Shortest pause that counts as a gap, in ms.")] = 10.0,
    out: Annotated[Path | None, typer.Option(help="Also draw the recordings to this .png or .svg file.")] = None,
) -> None:
    """Summarise and draw event-camera recordings."""
    from rheobase.data.events import read
    from rheobase.data.events.stream import sensor_of
    from rheobase.data.events.summary import summary

    if out is not None:
        target_file(out, "png", "svg")
    size = sensor_of(sensor)
    found: list[tuple[str, Summary]] = []
    for file in files:
        try:
            seen = summary(read(file, size=size, on_error="skip"), round(1000 * gap))
        except ValueError as error:
            if len(files) == 1:
                raise
            console.print(one_line(f"skipped: {error}"))
            continue
        found.append((file.name, seen))
        _print_recording(file, seen, gap)
    if out is not None and found:
        from rheobase.report.plots import recordings

        recordings([(name, vars(seen)) for name, seen in found], out)
        console.print(f"wrote {out}")
    if len(found) < len(files):
        raise ValueError(
            f"{len(files) - len(found)} of {len(files)} recordings could not be read; see the reasons above"
        )


def _print_recording(file: Path, seen: "Summary", gap: float) -> None:
    from torch import from_numpy

    from rheobase.report.shades import bars, shaded

    sensor = f"sensor of {seen.width} x {seen.height}"
    console.print(f"{one_line(str(file))}: {counted(seen.events, 'event')} in {seen.seconds:.3f} s, {sensor}")
    drawn = seen.events > 1
    if drawn:
        console.print(f"  {seen.rate:.0f} events per second, {max(seen.rates):.0f} in the busiest 1 % of the time")
        console.print(f"  {100 * seen.brighter:.1f} % brighter, {100 - 100 * seen.brighter:.1f} % darker")
        longest = max(seen.gaps, key=lambda pause: pause[1], default=None)
        what = f", the longest {1000 * longest[1]:.4g} ms at {longest[0]:.3f} s" if longest else ""
        console.print(f"  {counted(len(seen.gaps), 'gap')} of {gap:g} ms or more{what}")
    problems = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.skipped.items()))
    console.print(f"  damage: {problems or 'none'}")
    if outside := seen.skipped.get("outside"):
        them = f"{counted(outside, 'event')} {'is' if outside == 1 else 'are'} outside the sensor"
        console.print(f"  {them}: training would refuse this file")
    if not drawn:
        console.print("  too few events to say more\n")
        return
    console.print(shaded(from_numpy(seen.picture.sum(0)).float().log1p()))
    pairs = zip(seen.rates[::2], seen.rates[1::2], strict=True)  # one bar for 2 % of the time: 50 columns
    console.print(f"{bars([sum(pair) for pair in pairs])}\n")


def pack(
    folder: Annotated[
        Path, typer.Argument(help="Folder with one sub-folder of images per class, or with ImageNet's archives.")
    ],
    out: Annotated[Path, typer.Option(help="New folder for the shards.")],
) -> None:
    """Pack a folder of images into indexed tar shards. `train --data` reads them without unpacking."""
    from rheobase.data.sets.folder import held_out_in, listings
    from rheobase.data.shards import pack_with_progress

    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give one with a sub-folder of images per class")
    found = listings(folder)
    shards = pack_with_progress(found, out, held_out=held_out_in(folder))
    train, test = (len(listing.labels) for listing in found[1:])
    console.print(f"wrote {out}: {train} training and {test} test images of {len(found[0])} classes in {shards} shards")


def _one_per_class(labels: "Tensor") -> "list[Tensor]":
    return [(labels == label).nonzero()[0, 0] for label in labels.unique()]
