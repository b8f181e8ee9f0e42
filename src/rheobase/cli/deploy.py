"""The deployment commands: fold, convert, export, verify, predict."""

from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheobase.cli.common import (
    DataOption,
    DeviceOption,
    JsonOption,
    NetworkArgument,
    PluginOption,
    RunArgument,
    add_command,
    command_line,
    console,
    counted,
    export_hint,
    file_of,
    how_far,
    print_json,
    print_next,
    table,
    target_file,
)
from rheobase.cli.terminal import one_line
from rheobase.deploy import formats
from rheobase.extras import installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rheobase.deploy.agreement import Agreement

OutOption = Annotated[
    Path | None, typer.Option(help="File to write; default: in the run folder, or in the current folder.")
]


Format = StrEnum("Format", formats.names())  # type: ignore[misc]


class Form(StrEnum):
    """The forms of a NIR file."""

    canonical = "canonical"
    portable = "portable"


class Method(StrEnum):
    """The conversion methods."""

    data_norm = "data-norm"
    spike_norm = "spike-norm"
    rmp = "rmp"
    calibrated = "calibrated"
    qcfs = "qcfs"


class Reset(StrEnum):
    """What a spike does to the potential."""

    hard = "hard"
    soft = "soft"


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    add_command(app, fold, "runs/demo-1")
    add_command(app, convert, "runs/relu19 --method calibrated --timesteps 32")
    add_command(app, export, "runs/demo-1 --to nir --int8")
    add_command(app, verify, "runs/demo-1/network.nir runs/demo-1")
    add_command(app, predict, "cifar10-resnet19-t2 photo.png")


def fold(run: RunArgument, data: DataOption = None, out: OutOption = None, plugin: PluginOption = None) -> None:
    """Fold tdBN into the weights and write the network as one file of synapses and bare LIF neurons."""
    from rheobase.deploy.formats import native
    from rheobase.tasks.export import precisions
    from rheobase.tasks.open import folded, open_trained

    opened = open_trained(run)
    model, network = folded(opened)
    target = target_file(out or file_of(run, "folded.safetensors"), "safetensors")
    agreement = precisions(opened, data, model, network)
    native.save(network, target)
    _print_agreement(agreement)
    console.print(f"wrote {target}: {len(network.nodes)} nodes, no normalisation layers")
    print_next(
        (command_line("verify", target, run, data=data), "compare the file with the run on all test images"),
        export_hint(run, opened.recipe),
    )


def convert(
    run: RunArgument,
    method: Annotated[Method, typer.Option(metavar="METHOD", help=f"How to choose thresholds: {', '.join(Method)}.")],
    timesteps: Annotated[int, typer.Option(min=1, help="Timesteps of the spiking network.")],
    images: Annotated[int, typer.Option(min=1, help="Training images used to choose thresholds.")] = 256,
    percentile: Annotated[
        float | None,
        typer.Option(help="Threshold as a percentile: of activations (data-norm) or currents (spike-norm, rmp)."),
    ] = None,
    reset: Annotated[Reset | None, typer.Option(help="For data-norm: hard (to 0) or soft (by the threshold).")] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="For calibrated: start neurons at 0, for hybrid training.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed that selects the training images.")] = 0,
    data: DataOption = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    plugin: PluginOption = None,
) -> None:
    """Convert a trained ReLU network into a spiking network of integrate-and-fire neurons, in one file."""
    from rheobase.deploy.formats import native
    from rheobase.deploy.nodes import LIF
    from rheobase.tasks.convert import convert_run
    from rheobase.tasks.open import open_trained
    from rheobase.train import choose_device

    target = target_file(out or file_of(run, f"{method}-t{timesteps}.safetensors"), "safetensors")
    given = {"percentile": percentile, "reset": None if reset is None else reset.value, "spread": spread or None}
    options = {name: value for name, value in given.items() if value is not None}
    where, opened = choose_device(device), open_trained(run)
    known = data if target.parent == opened.folder else opened.data_path(data)  # a file elsewhere does not know it
    network = convert_run(opened, method, timesteps, data=data, images=images, seed=seed, device=where, **options)
    native.save(network, target)
    rows = table("layer", "threshold", "initial potential")
    for name, node in network.nodes.items():
        if isinstance(node, LIF):
            rows.add_row(name, _range(node.v_th), _range(node.initial))
    console.print(rows, soft_wrap=False)
    console.print(f"wrote {target}: integrate-and-fire neurons, {network.info['recipe']['reset']} reset")
    print_next(
        (command_line("eval", target, "--sweep", data=known), "its accuracy at 1, 2, 4, ... timesteps"),
        (command_line("eval", run, data=data), "the accuracy of the ReLU network"),
    )


def export(
    network: NetworkArgument,
    to: Annotated[Format, typer.Option(help="Format of the file.")],
    int8: Annotated[bool, typer.Option("--int8", help="Quantise the weights to 8 bits.")] = False,
    int16: Annotated[
        bool, typer.Option("--int16", help="Quantise the weights to 16 bits, which changes fewer spikes.")
    ] = False,
    form: Annotated[
        Form, typer.Option(help="Form of a NIR file; portable consists of convolutions and neurons only.")
    ] = Form.canonical,
    data: DataOption = None,
    device: Annotated[str, typer.Option(help="Device for quantising: auto, cpu, cuda or cuda:N.")] = "auto",
    out: OutOption = None,
    plugin: PluginOption = None,
) -> None:
    """Write a trained network to a file for other software and hardware, with tdBN folded into the weights."""
    from rheobase.tasks.export import write
    from rheobase.tasks.open import open_run, open_with_spikes
    from rheobase.train import choose_device
    from rheobase.train.runs import Run

    module = formats.module(to)
    if form is not Form.canonical and "form" not in signature(module.write).parameters:
        raise ValueError(f"the format {to} has no form '{form}'; leave out --form")
    if int8 and int16:
        raise ValueError("--int8 and --int16 exclude each other; leave one of them out")
    if form is Form.portable and (int8 or int16):
        raise ValueError("integers are written in the canonical form; leave out --form, --int8 or --int16")
    bits = 8 if int8 else 16 if int16 else None
    source = open_run(network)
    found = open_with_spikes(source, network, "is exported already")
    suffix = f"{f'-int{bits}' if bits else ''}{'-portable' if form is Form.portable else ''}{module.SUFFIX}"
    target = target_file(out or file_of(network, f"network{suffix}"), module.SUFFIX.removeprefix("."))
    options = {} if form is Form.canonical else {"form": form}
    with how_far("finding integers", "layers") as tell:
        write(found, target, module, source, bits=bits, data=data, device=choose_device(device), tell=tell, **options)
    console.print(f"wrote {target} ({target.stat().st_size / 2**20:.1f} MiB)")
    if isinstance(source, Run) or "converted" in found.info:
        print_next(
            (command_line("verify", target, network, data=data), "compare the file with its source on all test images")
        )
    else:
        print_next((command_line("predict", target, "IMAGE"), "classify an image"))


def verify(
    file: Annotated[Path, typer.Argument(help="File from fold or export.")],
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run, a file from convert, or the name of a network that comes with the package."
        ),
    ],
    data: DataOption = None,
    images: Annotated[int, typer.Option(min=1, help="Test images to compare spike by spike.")] = 32,
    simulate: Annotated[int, typer.Option(min=0, help="How many of these also run in the event-driven simulator.")] = 1,
    device: DeviceOption = "auto",
    plugin: PluginOption = None,
) -> None:
    """Compare a file with the network it came from: spikes, accuracy and a verdict."""
    from rheobase.tasks.open import open_run
    from rheobase.tasks.verify import verify as compare
    from rheobase.train import choose_device

    opened = open_run(run)
    options: dict[str, Any] = {"data": data, "images": images, "simulated": simulate, "device": choose_device(device)}
    with how_far("comparing accuracies", "images") as tell:
        found = compare(file, opened, **options, tell=tell)
    _print_agreement({"float64": found.agreement})
    if found.simulation is not None:
        other = found.simulation
        console.print(
            f"event-driven simulator, {counted(other.images, 'image')}: "
            f"{other.different} spikes differ, logits differ by {100 * other.logits:.2g} %"
        )
    if found.operations is not None:
        additions, multiplications = found.operations
        console.print(f"{additions:.3g} additions and {multiplications:.3g} multiplications per image")
    console.print(
        f"test accuracy on {found.images} images: {100 * found.trained:.2f} % as trained, "
        f"{100 * found.deployed:.2f} % from the file"
    )
    console.print(f"verdict: {found.verdict}")
    if not found.passed:
        again = ["export", run, "--to", formats.of_file(file).__name__.rpartition(".")[2]]
        if not found.only_rounded:
            print_next((command_line(*again), "export this run again"))
        else:
            finer = command_line(*again, "--int16", data=data), "weights of 16 bits: fewer spikes change"
            exact = command_line(*again), "floating point: nothing is lost"
            print_next(*([finer, exact] if found.bits == 8 else [exact]))
        raise typer.Exit(1)


def predict(
    network: NetworkArgument,
    images: Annotated[list[Path], typer.Argument(help="Images, recordings or .npy arrays, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show.")] = 3,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    plugin: PluginOption = None,
) -> None:
    """Classify images or recordings and show the most likely classes with their probabilities."""
    from rheobase.data.pictures import find, read
    from rheobase.tasks.predict import Classifier

    classify = Classifier(network, device)
    classes, paths = classify.about.data.classes, find(images, classify.about.data)
    seen: list[dict[str, object]] = []
    left_out: list[dict[str, str]] = []
    for path in paths:
        try:
            x = read(path, classify.about.data)
        except (ValueError, OSError) as error:
            if len(paths) == 1:
                raise
            reason = f"{path}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
            left_out.append({"file": str(path), "reason": reason})
            if not json:
                console.print(one_line(f"skipped: {reason}"))
            continue
        best = classify(x).topk(min(top, len(classes)))
        pairs = [(classes[k], p) for k, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        seen.append({"file": str(path), "classes": [{"class": name, "probability": p} for name, p in pairs]})
        if not json:
            console.print(one_line(f"{path}: {', '.join(f'{name} {100 * p:.1f} %' for name, p in pairs)}"))
    if json:
        print_json({"network": str(network), "images": seen, "left_out": left_out})
    if left_out:
        raise ValueError(f"{len(left_out)} of {len(paths)} files could not be read")


def deploy(run: Path) -> None:
    """Fold the network of a run, write it (as NIR if the extra is installed), verify the file and print one line."""
    from rheobase.deploy.formats import native, nir
    from rheobase.tasks.open import folded
    from rheobase.tasks.verify import verify as compare
    from rheobase.train.runs import Run

    opened = Run(run)
    _, network = folded(opened)
    target = run / "folded.safetensors"
    native.save(network, target)
    if installed("nir"):
        target = run / "network.nir"
        nir.write(network, target, opened.data.shape)
    found = compare(target, opened)
    console.print(
        f"deployed to {target}: at most {100 * max(found.agreement.layers.values()):.4f} % of spikes differ, "
        f"test accuracy {100 * found.deployed:.2f} %; verdict: {found.verdict}"
    )


def _range(values: "float | Tensor") -> str:
    """Format one number, or the lowest and the highest of several."""
    low, high = (values, values) if isinstance(values, float) else (float(v) for v in values.aminmax())
    return f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"


def _print_agreement(found: "Mapping[str, Agreement]") -> None:
    """Print the share of spikes that differ from the trained network, by precision."""
    first = next(iter(found.values()))
    if first.layers:
        rows = table("layer", "firing rate", *(f"differing, {name}" for name in found))
        for layer, rate in first.rates.items():
            rows.add_row(layer, f"{rate:.3f}", *(f"{100 * a.layers[layer]:.4f} %" for a in found.values()))
        console.print(rows, soft_wrap=False)
    for name, a in found.items():
        console.print(
            f"{name}: logits differ by at most {a.logits:.2g}, {100 * a.predictions:.2f} % of predictions agree"
        )
