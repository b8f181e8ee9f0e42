"""Write the tables of the documents from the files in results/: python -m tools.documents

README.md, docs/theory.md, docs/training.md and docs/trust.md have their own tools.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools import neurons as trained_neurons
from tools import results

ROOT = Path(__file__).parents[1]
START, END = "<!-- {}: written by python -m {} -->", "<!-- end of {} -->"
NEURONS = {
    "speed": "the paper's: rectangle, hard reset, a constant decay",
    "triangle": "triangle",
    "sigmoid": "sigmoid",
    "atan": "atan",
    "soft": "soft reset",
    "detached": "no gradient through the reset",
    "decay-layer": "a learnt decay per layer",
    "decay-channel": "a learnt decay per channel",
}
CONTENDERS = {
    "folded": "folded",
    "as trained": "as trained",
    "SpikingJelly": "SpikingJelly {version}",
    "ReLU network": "ReLU network of this shape, one pass per image",
}
FORMATS = {"compressed": "npz, compressed"}
RECORDINGS = {
    "user00_lab.aedat": "DVS128 gestures",
    "Caixa.aedat": "DVS128 objects: box",
    "Lapiseira.aedat": "pencil",
    "Tesoura.aedat": "scissors",
}
CONVERSIONS = "convert/table1"
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # columns for converted networks
NORMALISATIONS = {
    "tdBN": "neurons/paper",
    "none": "normalisation/none",
    "NeuNorm": "normalisation/neunorm",
}  # seed 0 of each
SLICED = ("rheobase", "rheobase without numba", "tonic", "spikingjelly", "rheobase, 32 x 32", "rheobase, 5 ms, 42 x 42")


def read(name: str) -> dict[str, Any]:
    """Return the content of a file in results/."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    headings = list(headings)
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rewritten(text: str, sections: Mapping[str, Callable[[], str]], tool: str) -> str:
    """Return a document in which every section of results is replaced by what its function returns."""
    for name, write in sections.items():
        start, end = START.format(name, tool), END.format(name)
        before, rest = text.split(start)
        _, after = rest.split(end)
        text = "\n\n".join([before + start, write(), end + after])
    return text


def readers() -> str:
    """Return how fast recordings are read."""
    rows = []
    for found in read("readers")["formats"]:
        own, *others = found["reading"].items()
        words = [f"{name} {_read(result)}" for name, result in others]
        name, size = FORMATS.get(found["name"], found["name"]), found["bytes"] / found["events"]
        rows.append((name, f"{size:.1f}", _read(own[1]), "; ".join(words)))
    return table(("format", "bytes per event", "rheobase", "others"), rows)


def _read(result: Mapping[str, Any]) -> str:
    if "million_events_per_second" not in result:
        return "fails"
    rate = _rounded(result["million_events_per_second"])
    return rate if result["result"] == "equal" else f"{rate}, but {result['result']}"


def slicing() -> str:
    """Return how fast recordings are sliced with warm caches; for ours, also in brackets with cold caches."""
    rows = []
    for found in read("events")["recordings"]:
        cells = []
        for name in SLICED:
            result = found["slicing"][name]
            warm, cold = (_rounded(result[f"million_events_per_second{end}"]) for end in ("", "_cold"))
            cells.append(f"{warm} ({cold})" if name.startswith("rheobase") else warm)
        own = RECORDINGS.get(found["name"])
        name = f"{own}, {found['events'] / 1e6:.2f} million" if own else found["name"]
        rows.append((name, f"{found['events'] / found['frames']:.0f}", *cells))
    names = ("rheobase", "without numba", "tonic `ToFrame`", "SpikingJelly", "30 ms, 32 x 32", "5 ms, 42 x 42")
    return table(("recording", "events per 30 ms", *names), rows)


def inference() -> str:
    """Return images per second on a CPU."""
    content = read("inference-cpu")
    found, facts = content["results"], content.get("record") or content["environment"]
    version = (facts.get("packages") or facts["versions"])["spikingjelly"]
    rows = [
        (words.format(version=version), *(f"{results[name]['images_per_second']:.1f}" for results in found.values()))
        for name, words in CONTENDERS.items()
    ]
    return table(("", *(f"batch {batch}" for batch in found)), rows)


def neurons() -> str:
    """Return the time of a training step with other neurons than the paper's."""
    (run,) = read("step-nvidia-h200-neurons-before")["runs"]
    times = {name: run["results"][f"rheobase-{name}"]["us_per_image_timestep"] for name in NEURONS}
    rows = [(NEURONS[name], f"{time:.1f}", f"{time / times['speed']:.2f}") for name, time in times.items()]
    before = run["results"]["before-rheobase-speed"]["us_per_image_timestep"]
    rows.append(("the paper's, before there was a choice", f"{before:.1f}", f"{before / times['speed']:.2f}"))
    return table(("neuron", "us", "against the paper's"), rows)


def group() -> str:
    """The captured step of a group of one, and what its collectives would add on a node."""
    content = read("group-nvidia-h200")
    gpus, rows, waits = content["node"]["gpus"], [], 0
    for run in content["runs"]:
        setting, alone = run["setting"], run["results"]["alone"]
        for name in ("joined", "local"):
            found = run["results"][name]
            waits += found["host_synchronisations"]
            rows.append(
                (
                    _network(setting["network"]),
                    str(setting["batch"]),
                    name,
                    f"{1e3 * alone['seconds']:.2f}",
                    f"{1e3 * found['seconds']:.2f}",
                    f"{found['ratio']:.3f}",
                    f"{found['collectives']}, {found['bytes'] / 1e6:.1f} MB",
                    f"{1e3 * found['seconds_of_collectives_on_node']:.2f}",
                    f"{found['ratio_on_node']:.3f}",
                )
            )
    measured = ("network", "images", "statistics", "one process, ms", "group of one, ms", "ratio", "collectives")
    computed = (f"on {gpus} GPUs: collectives, ms", "ratio")
    return f"{table((*measured, *computed), rows)}\n\nHost synchronisations in all these steps: {waits}."


def scale() -> str:
    """Return predicted and measured steps: of several processes on a CPU, and of groups of one process on a GPU."""
    content = read("scale-cpu")
    own = content["setting"]
    rows = [
        (_network(own["network"]), f"{run['processes']} x {own['threads']} cores, gloo", *_predicted(run))
        for run in content["runs"]
    ]
    rows += [(_network(run["network"]), "group of one, H200", *_predicted(run)) for run in content["groups_of_one"]]
    return table(("network", "processes", "images each", "predicted, ms", "measured, ms", "ratio"), rows)


def _predicted(run: Mapping[str, Any]) -> list[str]:
    times = [f"{1e3 * run[f'{kind}_seconds']:.3g}" for kind in ("predicted", "measured")]
    return [str(run["batch"]), *times, f"{run['predicted_to_measured']:.2f}"]


def checkpoints() -> str:
    """Return how long a checkpoint stops training on a GPU."""
    rows = []
    for name, found in read("checkpoint-nvidia-h200")["results"]["cuda"].items():
        stalls, written = found["stall_seconds"], statistics.median(found["written_seconds"])
        drags = found["drag_seconds"]
        times = (found["step_seconds"], statistics.median(stalls), max(stalls), statistics.median(drags), max(drags))
        cells = (f"{1e3 * seconds:.1f}" for seconds in times)
        size = f"{found['checkpoint_bytes'] / 1e6:.0f}"
        rows.append((_network(name), str(found["batch"]), size, *cells, f"{written:.2f}"))
    stops = ("stop, ms", "longest stop", "total delay, ms", "longest delay")
    return table(("network", "images", "MB", "step, ms", *stops, "written after, s"), rows)


def _network(name: str) -> str:
    return name.replace("resnet", "ResNet-")


def trained() -> str:
    """Return the accuracy with other neurons and blocks."""
    return table(trained_neurons.HEADINGS, trained_neurons.rows()) + "\n\n" + trained_neurons.noise_sentence()


def conversions() -> str:
    """Return the accuracy of converted and trained networks against the number of timesteps."""
    if not (ROOT / "results" / f"{CONVERSIONS}.json").exists():
        return "This has not been measured on CIFAR-10 yet."
    content, rows = read(CONVERSIONS), []
    known = {point["timesteps"] for found in content["data"]["rows"] for point in found["points"]}
    columns = [t for t in STEPS if t in known]
    for found in content["data"]["rows"]:
        points = {point["timesteps"]: point for point in found["points"]}
        most = max(point.get("images", 0) for point in points.values())
        cells = [_share(points.get(t), most) for t in columns]
        own = points.get(found["near"] or found["timesteps"])  # where it is used
        energy = f"{1e3 * own['joule']:.3g}" if own and own["joule"] is not None else ""
        relu = next((f"{point['relu']:.2f}" for point in points.values() if "relu" in point), "")
        near = str(found["near"] or ("none" if relu else ""))
        rows.append((found["label"], relu, near, energy, *cells))
    names = ("network", "ReLU, %", "T within 0.5 points", "mJ", *(f"T = {t}" for t in columns))
    legend = ["\\* on every tenth image"] if any("*" in cell for row in rows for cell in row) else []
    verdict = [sentence for sentence in content["comparison"] if sentence.startswith("Direct training")]
    return "\n\n".join([table(names, rows), *legend, *verdict])


def _share(point: Mapping[str, Any] | None, most: int) -> str:
    if point is None:
        return ""
    return f"{point['accuracy']:.2f}" + ("*" if point.get("images", most) < most else "")


def normalisations() -> str:
    """Return the accuracy on held-out images after short training with older normalisations."""
    folders = {name: ROOT / "results" / place / "seed-0" for name, place in NORMALISATIONS.items()}
    rows = []
    for name, folder in folders.items():
        if (folder / "metrics.jsonl").exists():
            last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            rows.append((name, f"{100 * last['test_accuracy']:.2f}", f"{last['elapsed']:.0f}"))
        else:
            rows.append((name, "not measured yet", ""))
    return table(("normalisation", "accuracy, %", "seconds"), rows)


def _rounded(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/cluster.md": {"group": group, "scale": scale, "checkpoints": checkpoints},
    "docs/convert.md": {"conversions": conversions, "normalisations": normalisations},
    "docs/data.md": {"readers": readers, "slicing": slicing},
    "docs/deploy.md": {"inference": inference},
    "docs/neurons.md": {"neurons": neurons, "trained": trained},
    "docs/results.md": {"results": lambda: "\n\n".join(results.tables())},
}


def writer(document: str) -> Callable[[str], str]:
    """Return a function from the text of a document to the same text with new tables."""
    return partial(rewritten, sections=DOCUMENTS[document], tool="tools.documents")


if __name__ == "__main__":
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(writer(name)(path.read_text()))
