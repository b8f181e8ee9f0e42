"""The analysis commands: analyze, paper, report."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheobase.cli.common import (
    RUN_HELP,
    DataOption,
    DeviceOption,
    NetworkArgument,
    PluginOption,
    add_command,
    console,
    file_of,
    table,
    target_file,
)
from rheobase.extras import installed

if TYPE_CHECKING:
    import torch

    from rheobase.paper.result import Result

ImagesOption = Annotated[int, typer.Option(min=1, help="Number of test images to use.")]


class Item(StrEnum):
    """The figures, tables and theorems that `paper` computes."""

    fig2 = "fig2"
    fig3 = "fig3"
    fig4 = "fig4"
    fig6 = "fig6"
    table1 = "table1"
    table2 = "table2"
    table3 = "table3"
    table6 = "table6"
    theorem1 = "theorem1"
    theorem2 = "theorem2"
    ablation = "ablation"


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    add_command(app, analyze, "runs/demo-1")
    add_command(app, paper, "table1 runs/cifar10_resnet19_t2-1")
    add_command(app, report, "runs/demo-1")


def analyze(
    run: Annotated[Path | None, typer.Argument(help=RUN_HELP)] = None,
    network: Annotated[str | None, typer.Option(help="Analyse this untrained network instead of a run.")] = None,
    data: DataOption = None,
    images: ImagesOption = 64,
    plugin: PluginOption = None,
) -> None:
    """Analyse the layers of a trained network, or predict whether an untrained one will train."""
    from rheobase.analysis.distributions import Histogram
    from rheobase.report.layout import joule
    from rheobase.tasks.inspect import inspect_network, inspect_run
    from rheobase.tasks.open import open_trained

    if (run is None) == (network is None):
        raise ValueError("give either a run or a network: rheobase analyze RUN, or rheobase analyze --network resnet19")
    if network is not None:
        found = inspect_network(network)
        rows = table("block", "phi by timestep", "varphi by timestep")
        for block in found["blocks"]:
            steps = block["steps"]
            rows.add_row(
                block["name"],
                "  ".join(f"{e['phi']:.2f} +- {e['phi_error']:.2f}" for e in steps),
                "  ".join(f"{e['varphi']:.2f}" for e in steps),
            )
        console.print(f"{network} at initialisation, on noise")
        console.print(rows, soft_wrap=False)
        rates = [layer["rate"] for layer in found["layers"]]
        if rates:
            console.print(f"firing rates: {min(rates):.3f} to {max(rates):.3f} spikes per neuron and timestep")
    else:
        assert run is not None
        found = inspect_run(open_trained(run), data=data, images=images)
        rows = table("layer", "neurons", "firing rate", "never fire", "always fire", "potential / v_th")
        for layer in found["layers"]:
            known = found["membranes"].get(layer["name"])  # unknown for neurons with their own dynamics
            potential = Histogram(**known) if known else None
            rows.add_row(
                layer["name"],
                str(layer["neurons"]),
                f"{layer['rate']:.3f}",
                f"{100 * layer['dead']:.0f} %",
                f"{100 * layer['saturated']:.0f} %",
                f"{potential.mean:.2f} +- {potential.deviation:.2f}" if potential else "unknown",
            )
        console.print(rows, soft_wrap=False)
        if (done := found["operations"]) is None:
            console.print(f"number of operations unknown: {found['not_folded']}")
        else:
            console.print(
                f"{done['additions']:.3g} additions and {done['multiplications']:.3g} multiplications per image, "
                f"{joule(done['joule'])}; a network without spikes: {done['dense']:.3g} of each, "
                f"{joule(done['dense_joule'])}"
            )
    healthy = (
        "findings: none, all layers are healthy" if found["layers"] else "findings: none, the network has no somas"
    )
    console.print("findings:" if found["findings"] else healthy)
    for sentence in found["findings"]:
        console.print(f"  {sentence}")


def paper(
    item: Annotated[Item, typer.Argument(show_choices=False, help=f"What to compute: {', '.join(Item)}.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, for tables and Fig. 6.")] = None,
    data: DataOption = None,
    images: Annotated[int | None, typer.Option(min=1, help="Test images for Fig. 6 and Table 6 of a run.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="For the ablation: epochs per run.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="For Table 1: conversion methods to measure, separated by commas.")
    ] = None,
    timesteps: Annotated[
        int | None, typer.Option(min=1, help="For Table 1: largest number of timesteps after conversion.")
    ] = None,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="Folder for data and plots.")] = Path("runs/paper"),
    plugin: PluginOption = None,
) -> None:
    """Reproduce a figure, table or theorem of the paper. Write data and plot, and compare with the paper."""
    import torch

    from rheobase.train import choose_device

    torch.set_num_threads(1)  # the operations are small: a second thread would mostly wait
    nearest = next(place for place in (out, *out.parents) if place.exists())
    if not nearest.is_dir():
        raise ValueError(f"cannot write to {out}: {nearest} is not a folder; choose another folder with --out")
    conversions = {"ways": methods.split(",") if methods else None, "longest": timesteps, "folder": out}
    for result in _compute(item, list(runs or []), data, images, epochs, choose_device(device), conversions):
        if result.to_come:
            console.print(f"{result.to_come} more to come")
            if result.data["rows"]:  # save finished rows, in case a later one fails
                result.save(out)
    console.print(f"{result.title} ({result.source})")
    for sentence in result.comparison:
        console.print(f"  {sentence}")
    written = [result.save(out)]
    if installed("matplotlib"):
        from rheobase.report.plots import draw

        written += draw(result.name, f"{result.title} ({result.source})", result.charts, out)
    else:
        console.print("to draw the plot, install rheobase[plots]")
    console.print(f"wrote {', '.join(map(str, written))}")


def report(
    run: NetworkArgument,
    data: DataOption = None,
    images: ImagesOption = 360,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: in the run folder, or in the current folder.")
    ] = None,
    plugin: PluginOption = None,
) -> None:
    """Write a report on a run or a deployed network as one self-contained HTML file."""
    target = write_report(run, data=data, images=images, out=out)
    console.print(f"wrote {target} ({target.stat().st_size / 2**20:.2f} MiB); open it in a browser")


def write_report(run: Path, *, data: Path | None = None, images: int = 360, out: Path | None = None) -> Path:
    """Write the report and return its path."""
    from rheobase.report import layout
    from rheobase.report.page import render
    from rheobase.tasks.inspect import inspect_file, inspect_run
    from rheobase.tasks.open import open_run
    from rheobase.train.runs import Run

    opened = open_run(run)
    target = target_file(out or file_of(run, "report.html"), "html")
    if isinstance(opened, Run):
        found = inspect_run(opened, data=data, images=images)
    else:
        found = inspect_file(opened, data=data, images=images)
    layout.write(render(found), target)
    return target


def _compute(
    item: Item,
    runs: list[Path],
    data: Path | None,
    images: int | None,
    epochs: int | None,
    device: "torch.device",
    conversions: dict[str, Any],
) -> "Iterable[Result]":
    """Compute the result. Long computations yield preliminary results first."""
    from rheobase.paper import inference, theory, training
    from rheobase.paper.ablation import ablation
    from rheobase.paper.conversion import table1

    of_run, trains = item in (Item.fig6, Item.table6), item in (Item.fig2, Item.ablation)
    unused = {
        "--images": images is not None and not (of_run and runs),
        "--epochs": epochs is not None and item is not Item.ablation,
        "--data": data is not None and not trains and not ((of_run or item is Item.table1) and runs),
        "--methods": conversions["ways"] is not None and item is not Item.table1,
        "--timesteps": conversions["longest"] is not None and item is not Item.table1,
    }
    what = f"{item} without a run" if (of_run or item is Item.table1) and not runs else item
    for option in (name for name, given in unused.items() if given):
        raise ValueError(f"{what} does not use {option}; leave it out")
    if item is Item.table1:
        return table1(runs, data=data, device=device, **conversions)
    if item in (Item.table2, Item.table3):
        return [training.table(item.value, runs)]
    if of_run:
        if len(runs) > 1:
            raise ValueError(f"{item} takes one run, got {len(runs)}; leave out the others")
        look = inference.fig6 if item is Item.fig6 else inference.table6
        counted = {} if images is None else {"images": images}
        return [look(run=runs[0] if runs else None, data=data, device=device, **counted)]
    if runs:
        raise ValueError(f"{item} takes no runs; leave out {runs[0]}")
    if item is Item.fig2:
        return training.fig2(data=data, device=device)
    if item is Item.ablation:
        return ablation(data=data, device=device, epochs=epochs)
    compute: dict[Item, Callable[[], Result]] = {
        Item.theorem1: theory.theorem1,
        Item.theorem2: theory.theorem2,
        Item.fig3: theory.fig3,
        Item.fig4: theory.fig4,
    }
    return [compute[item]()]
