"""The report on a run as one self-contained HTML page, from plain data."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rheobase.report import svg
from rheobase.report.layout import document
from rheobase.report.layout import joule as _joule
from rheobase.report.layout import section as _section


def render(data: Mapping[str, Any]) -> str:
    """Return the page for the results of `tasks.inspect` on a run, or on a file, which has no epochs."""
    recipe, of_a_run = data["recipe"], data["rows"] is not None
    made = "Converted for" if data["environment"] and not of_a_run else "Trained at"
    sections = [
        *([_curves(data["rows"])] if of_a_run else []),
        _timesteps(data["accuracy_by_timesteps"], f"{made} T = {recipe['timesteps']}.", data["images"]),
        _confusion(data),
        _rates(data["layers"], data["findings"]),
        *([_gradients(data["gradients"])] if of_a_run else []),
        _samples(data["samples"], data["classes"]),
        *([_membranes(data["membranes"])] if data["membranes"] else []),
        *_folded(data),
        _reproduce(data["command"], data["environment"], of_a_run),
    ]
    source = f"{recipe['data']} (simulated recordings)" if data["simulated"] else recipe["data"]
    source += ", tested on held-out training images" if recipe["holdout"] else ""
    return document(
        f"{recipe['name']}: inside a spiking network",
        f"{recipe['network']} on {source}, {recipe['timesteps']} timesteps, "
        f"{'run' if of_a_run else 'file'} {data['folder']}",
        _facts(data),
        sections,
    )


def _folded(data: Mapping[str, Any]) -> list[str]:
    """Return what is known about the folded network, or why it is unknown."""
    if data["operations"] is None:
        return [_section("Operations and energy", f"Unknown: {data['not_folded']}", "")]
    return [_operations(data["operations"], data["recipe"]["timesteps"]), _network(data["graph"], data["layers"])]


def _facts(data: Mapping[str, Any]) -> dict[str, str]:
    done, layers = data["operations"], data["layers"]
    neurons = sum(layer["neurons"] for layer in layers)
    rate = sum(layer["rate"] * layer["neurons"] for layer in layers) / max(1, neurons)
    if data["rows"] is None:
        accuracy = data["accuracy_by_timesteps"][data["recipe"]["timesteps"] - 1]
        facts = {f"accuracy, {data['images']} test images": f"{100 * accuracy:.2f} %"}
    else:
        tested = [row["test_accuracy"] for row in data["rows"] if "test_accuracy" in row]
        facts = {
            "test accuracy, last epoch": f"{100 * tested[-1]:.2f} %" if tested else "none yet",
            "best epoch": f"{100 * max(tested):.2f} %" if tested else "none yet",
        }
    facts["spikes per neuron and timestep"] = f"{rate:.3f}"
    if done is not None:
        facts |= {
            "energy per image, 45 nm": _joule(done["joule"]),
            "energy of the same network without spikes": _joule(done["dense_joule"]),
        }
    return facts


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    def series(names: Mapping[str, str], factor: float) -> dict[str, tuple[list[float], list[float]]]:
        return {
            label: ([r["epoch"] for r in rows if key in r], [factor * r[key] for r in rows if key in r])
            for key, label in names.items()
        }

    losses = svg.line_chart(series({"loss": "training", "test_loss": "test"}, 1), "epoch", "loss")
    accuracies = svg.line_chart(
        series({"train_accuracy": "training", "test_accuracy": "test"}, 100), "epoch", "accuracy, %"
    )
    return _section("Loss", "Mean over each epoch.", losses) + _section(
        "Accuracy", "Training images are augmented, test images are not.", accuracies
    )


def _timesteps(accuracies: Sequence[float], made: str, images: int) -> str:
    chart = svg.line_chart(
        {"": (list(range(1, len(accuracies) + 1)), [100 * a for a in accuracies])}, "timesteps", "accuracy, %"
    )
    return _section("Accuracy against timesteps", f"{made} {images} test images.", chart)


def _confusion(data: Mapping[str, Any]) -> str:
    note = f"{data['images']} test images. Rows are classes, columns are predicted classes."
    return _section("Confusion matrix", note, svg.heat_map(data["confusion"], data["classes"]))


def _samples(samples: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str:
    buttons, parts = [], []
    for i, sample in enumerate(samples):
        picture = svg.png(sample["pixels"])
        best = sorted(range(len(classes)), key=lambda k: -sample["probabilities"][k])[:4]
        right = best[0] == sample["label"]
        said = f"{classes[sample['label']]}, {'recognised' if right else f'mistaken for {classes[best[0]]}'}"
        buttons.append(
            f'<button type="button" data-shows="sample{i}" aria-pressed="{str(i == 0).lower()}" '
            f'aria-label="{escape(said)}"><img alt="" src="{picture}"></button>'
        )
        bars = "".join(
            f"<span>{'<b>' if k == sample['label'] else ''}{escape(classes[k])}{'</b>' if k == sample['label'] else ''}"
            f'</span><i style="width:{100 * sample["probabilities"][k]:.1f}%"></i>'
            f"<span>{100 * sample['probabilities'][k]:.1f} %</span>"
            for k in best
        )
        parts.append(
            f'<div class="sample" id="sample{i}"{"" if i == 0 else " hidden"}>'
            f'<div class="seen"><img alt="{escape(said)}" src="{picture}">'
            f'<div><p>{escape(said)}</p><div class="guess">{bars}</div></div></div>'
            f"<div>{svg.raster(sample['raster']) if sample['raster'] else ''}</div></div>"
        )
    body = f'<div class="choices">{"".join(buttons)}</div>{"".join(parts)}'
    note = (
        "Choose an image. Each row is one of a few neurons per layer, time runs to the right, and each mark is a spike."
    )
    if samples and len(samples[0]["pixels"]) == 2:
        note += " Events of polarity 0 are red, those of polarity 1 green; yellow means both."
    return _section("Inputs and spikes", note, body, "wide")


def _rates(layers: Sequence[Mapping[str, Any]], findings: Sequence[str]) -> str:
    if not layers:
        return _section("Firing rates", "Unknown: the network has no somas of rheobase.nn.", "")
    names = [svg.short(layer["name"]) for layer in layers]
    chart = svg.bar_chart(names, [layer["rate"] for layer in layers], "layer", "spikes per neuron and timestep")
    told = (finding.partition(": ") for finding in findings)
    words = "".join(f"<li>{escape(svg.short(name))}: {escape(what)}</li>" for name, _, what in told)
    words = words or "<li>all layers are healthy</li>"
    return _section("Firing rates", "On test images.", f"{chart}<ul>{words}</ul>")


def _gradients(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return _section("Gradient flow", "Unknown: there are no layers between the first and the last.", "")
    names = [svg.short(name) for name in found["layers"]]
    places = {"spikes": [*range(len(names))], "weights": [i for i, name in enumerate(names) if "shortcut" not in name]}
    if len(places["weights"]) != len(found["weights"]):  # several synapses in a layer: numbers instead of names
        names, places = [], {key: [*range(1, len(found[key]) + 1)] for key in places}
    series = {key: (xs, found[key]) for key, xs in places.items()}
    chart = svg.line_chart(series, "layer", "gradient norm", log=True, names=names)
    note = "Gradient of the loss at the trained weights. A level curve neither vanishes nor explodes."
    return _section("Gradient flow", note, chart)


def _membranes(membranes: Mapping[str, Mapping[str, Any]]) -> str:
    figures = "".join(
        f"<figure>{svg.histogram(h['edges'], h['density'], 1.0, name)}"
        f"<figcaption>{escape(svg.short(name))}</figcaption></figure>"
        for name, h in membranes.items()
    )
    note = "Before the reset, in units of the threshold. Neurons to the right of the line fire."
    return _section("Membrane potentials", note, f'<div class="small">{figures}</div>', "wide")


def _operations(done: Mapping[str, Any], timesteps: int) -> str:
    rows = "".join(
        _row(
            svg.short(layer["name"]),
            layer["fed_by"],
            _count(layer["additions"]),
            _count(layer["multiplications"]),
            _count(layer["dense"]),
            f"{(layer['additions'] + layer['multiplications']) / max(1, layer['dense'] * timesteps):.3f}",
        )
        for layer in done["layers"]
    )
    counts = [_count(done[key]) for key in ("additions", "multiplications", "dense")]
    total = _row("all", "", *counts, "") + _row(
        "energy", "", _joule(done["joule"]), "", _joule(done["dense_joule"]), ""
    )
    heads = "".join(
        f"<th>{h}</th>"
        for h in ("synapse", "fed by", "additions", "multiplications", "without spikes", "used per timestep")
    )
    table = (
        f'<div class="scroll tall"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>'
        f"<tfoot>{total}</tfoot></table></div>"
    )
    note = (
        f"One image, all timesteps, mean of {done['images']} images. An input of zero costs nothing, an input of one "
        f"an addition (0.9 pJ), any other input a multiplication with addition (4.6 pJ). Not included: "
        f"{_count(done['bias'])} bias additions, {_count(done['neuron_updates'])} neuron updates, memory traffic."
    )
    return _section("Operations and energy", note, table, "two")


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _network(graph: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]]) -> str:
    rates = {layer["name"].replace(".", "_"): layer["rate"] for layer in layers}
    note = "Each box is a layer of neurons. Darker layers fire more. Shortcuts are dashed."
    return _section("Network", note, f'<div class="tall">{svg.network(graph, rates)}</div>')


def _reproduce(command: str, environment: Mapping[str, Any], of_a_run: bool) -> str:
    """Show how to make the run again. A file does not say how it was trained, only how it was converted."""
    body = f"<pre>{escape(command)}</pre>"
    if environment:
        body += f"<pre>{escape(json.dumps(environment, indent=1))}</pre>"
    if of_a_run:
        return _section("Reproduce this run", "Command and environment.", body, "wide")
    note = "Command, and how the network was converted." if environment else "Command."
    return _section("Reproduce this page", note, body, "wide")


def _count(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
