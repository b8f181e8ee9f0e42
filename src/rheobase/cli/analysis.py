"""The commands of analysis: analyze, paper, report. `register` adds them to the command line."""

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
    console,
    file_of,
    table,
    target_file,
)
from rheobase.extras import installed

if TYPE_CHECKING:
    import torch

    from rheobase.paper.result import Result

ImagesOption = Annotated[int, typer.Option(min=1, help="Test images to look at.")]


class Item(StrEnum):
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
    for command in (analyze, paper, report):
        app.command()(command)


def analyze(
    run: Annotated[Path | None, typer.Argument(help=RUN_HELP)] = None,
    network: Annotated[str | None, typer.Option(help="A network before any training, instead of a run.")] = None,
    data: DataOption = None,
    images: ImagesOption = 64,
    plugin: PluginOption = None,
) -> None:
    """Look inside a trained run, or ask whether a network will train."""
    from rheobase.analysis.distributions import Histogram
    from rheobase.tasks.inspect import inspect_network, inspect_run
    from rheobase.tasks.open import open_trained

    if (run is None) == (network is None):
        raise ValueError("analyze a run or a network: rheobase analyze RUN, or rheobase analyze --network resnet19")
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
            console.print(f"firing rates: {min(rates):.3f} to {max(rates):.3f} spikes per neuron and step")
    else:
        assert run is not None
        found = inspect_run(open_trained(run), data=data, images=images)
        rows = table("layer", "neurons", "spikes / step", "never fire", "always fire", "potential / v_th")
        for layer in found["layers"]:
            known = found["membranes"].get(layer["name"])  # not of neurons with dynamics of their own
            potential = Histogram(**known) if known else None
            rows.add_row(
                layer["name"],
                str(layer["neurons"]),
                f"{layer['rate']:.3f}",
                f"{100 * layer['dead']:.0f} %",
                f"{100 * layer['saturated']:.0f} %",
                f"{potential.mean:.2f} +- {potential.deviation:.2f}" if potential else "not known",
            )
        console.print(rows, soft_wrap=False)
        if (done := found["operations"]) is None:
            console.print(f"operations are not known: {found['not_folded']}")
        else:
            console.print(
                f"{done['additions']:.3g} additions and {done['multiplications']:.3g} multiplications per image, "
                f"{1e3 * done['joule']:.3g} mJ; without spikes {done['dense']:.3g} of each, "
                f"{1e3 * done['dense_joule']:.3g} mJ"
            )
    healthy = "findings: none, every layer is in good health" if found["layers"] else "findings: none, it has no somas"
    console.print("findings:" if found["findings"] else healthy)
    for sentence in found["findings"]:
        console.print(f"  {sentence}")


def paper(
    item: Annotated[Item, typer.Argument(help="Figure, table or theorem of the paper, or the ablation.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, for tables and Fig. 6.")] = None,
    data: DataOption = None,
    images: Annotated[int | None, typer.Option(min=1, help="Test images for Fig. 6 and Table 6 of a run.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of every training of the ablation.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Of Table 1: conversions of ReLU runs to measure, with commas between them.")
    ] = None,
    timesteps: Annotated[int | None, typer.Option(min=1, help="Of Table 1: most steps of converted networks.")] = None,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="Folder for data and pictures.")] = Path("runs/paper"),
    plugin: PluginOption = None,
) -> None:
    """Compute a figure, table or theorem of the paper anew: data, picture, comparison."""
    import torch

    from rheobase.train import choose_device

    torch.set_num_threads(1)  # many small operations: a second thread mostly waits
    conversions = {"ways": methods.split(",") if methods else None, "longest": timesteps, "folder": out}
    for result in _compute(item, list(runs or []), data, images, epochs, choose_device(device), conversions):
        if result.to_come:
            console.print(f"{result.to_come} more to come")
            if result.data["rows"]:  # what is there is kept, whatever happens to the rest
                result.save(out)
    console.print(f"{result.title} ({result.source})")
    for sentence in result.comparison:
        console.print(f"  {sentence}")
    written = [result.save(out)]
    if installed("matplotlib"):
        from rheobase.report.plots import draw

        written += draw(result.name, f"{result.title} ({result.source})", result.charts, out)
    else:
        console.print("for pictures, install rheobase[plots]")
    console.print(f"wrote {', '.join(map(str, written))}")


def report(
    run: NetworkArgument,
    data: DataOption = None,
    images: ImagesOption = 360,
    out: Annotated[Path | None, typer.Option(help="File to write; otherwise report.html in the run, or here.")] = None,
    plugin: PluginOption = None,
) -> None:
    """Write one HTML file that shows a run, or a deployed network, from inside; it needs no network."""
    target = write_report(run, data=data, images=images, out=out)
    console.print(f"wrote {target} ({target.stat().st_size / 2**20:.2f} MB); open it in a browser")


def write_report(run: Path, *, data: Path | None = None, images: int = 360, out: Path | None = None) -> Path:
    from rheobase.files import atomic_write
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
    page = render(found)
    with atomic_write(target) as part:
        part.write_text(page)
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
    """The result, after its preliminary versions where there are such."""
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
        raise ValueError(f"{what} has no use for {option}; leave it out")
    if item is Item.table1:
        return table1(runs, data=data, device=device, **conversions)
    if item in (Item.table2, Item.table3):
        return [training.table(item.value, runs)]
    if of_run:
        if len(runs) > 1:
            raise ValueError(f"{item} looks at one run, got {len(runs)}")
        look = inference.fig6 if item is Item.fig6 else inference.table6
        counted = {} if images is None else {"images": images}
        return [look(run=runs[0] if runs else None, data=data, device=device, **counted)]
    if runs:
        raise ValueError(f"{item} needs no run; leave out {runs[0]}")
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
