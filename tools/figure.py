"""Draw what is known of speed on a GPU, ours, others' and the floor side by side: python -m tools.figure

Reads results/step-<device>.json, the same of larger networks, and results/inference-<device>.json; writes
results/speed-<device>.svg and .png.
"""

import argparse
import json
from math import nan
from pathlib import Path
from typing import Any

from rheobase.report.charts import Chart
from rheobase.report.plots import draw
from tools.readme import ROOT

STEP = {  # by the names of benchmarks.step, in the order of the bars
    "floor": "convolutions alone",
    "rheobase-speed": "Rheobase",
    "relu-graph": "ReLU network",
    "relu-compiled": "ReLU network, torch.compile",
    "spikingjelly": "SpikingJelly",
    "spikingjelly-compiled": "SpikingJelly, torch.compile",
}
CAPTURED = ", CUDA graph"
INFERENCE = {name + CAPTURED: name for name in ("folded", "as trained", "ReLU network, T x N images", "SpikingJelly")}


def step_chart(runs: list[dict[str, Any]]) -> Chart:
    """The training step of every network; who did not take part has no bar."""
    words = [f"{_title(s['network'])}, N = {s['batch']}" for s in (run["setting"] for run in runs)]
    series = {
        label: (words, [run["results"].get(name, {}).get("us_per_image_timestep", nan) for run in runs])
        for name, label in STEP.items()
        if any(name in run["results"] for run in runs)
    }
    (timesteps,) = {run["setting"]["timesteps"] for run in runs}
    return Chart(f"Training step, T = {timesteps}", "", "us per image and timestep", series, bars=True)


def inference_chart(content: dict[str, Any]) -> Chart:
    """Time of a batch of every size, on a logarithmic axis."""
    settings, results = content["settings"], content["results"]
    words = [f"N = {batch}" for batch in results]
    series = {
        label: (words, [found.get(name, {}).get("milliseconds", nan) for found in results.values()])
        for name, label in INFERENCE.items()
        if any(name in found for found in results.values())
    }
    title = f"Inference of {_title(settings['network'])}, T = {settings['timesteps']}, CUDA graphs"
    return Chart(title, "", "ms", series, bars=True, log=True)


def _title(network: str) -> str:
    return network.replace("resnet", "ResNet-")


def make(results: Path, device: str) -> list[Path]:
    """The files that were written; a ValueError if there is nothing to draw."""
    steps = [results / f"step-{device}{network}.json" for network in ("", "-resnet34", "-resnet50")]
    runs = [run for path in steps if path.exists() for run in json.loads(path.read_text())["runs"]]
    if not runs:
        raise ValueError(f"no results of a training step on '{device}' in {results}; run benchmarks.step there first")
    charts, inference = [step_chart(runs)], results / f"inference-{device}.json"
    if inference.exists():
        charts.append(inference_chart(json.loads(inference.read_text())))
    return draw(f"speed-{device}", f"Speed on one {device}, bf16", charts, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="nvidia-h200", help="as in the names of the files")
    for path in make(ROOT / "results", parser.parse_args().device):
        print(f"written to {path}")


if __name__ == "__main__":
    main()
