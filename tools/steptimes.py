"""Write the step times for the predictions of `rheobase plan` from the files in results/: python -m tools.steptimes

They go into the package, as `train/steptimes.json`, and the predictions for every recipe into docs/training.md. If a
step was measured more than once, the newest measurement counts.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rheobase import models, recipes
from rheobase.data import expected
from rheobase.files import write_json
from rheobase.recipes import RECIPES
from rheobase.train import scale
from rheobase.train.plan import duration
from rheobase.train.steptimes import FILE, Step, Work
from tools.documents import rewritten, table

ROOT = Path(__file__).parents[1]
RESULTS, DOCUMENT = ROOT / "results", ROOT / "docs" / "training.md"
DEVICE, PRECISION = "NVIDIA H200", "bf16"
CHANNELS = 3  # of the images in benchmarks
SWEEP = 3  # batch sizes needed to find the fixed time of a step
OURS = {f"rheobase-{memory}": memory for memory in ("speed", "packed", "recompute")}

Subject = tuple[str, int]


def steps(results: Path) -> list[Step]:
    """Return all measured steps, each at most once."""
    newest: dict[tuple[Any, ...], tuple[str, Step]] = {}
    for time, step in (*_compared(results), *_in_training(results), *_in_the_loop(results)):
        key = (step.network, step.image_size, step.memory, step.timesteps, step.batch)
        if key not in newest or newest[key][0] < time:
            newest[key] = time, step
    return [step for _, (_, step) in sorted(newest.items())]


def _compared(results: Path) -> Iterator[tuple[str, Step]]:
    """Yield our steps among the contenders of benchmarks.step."""
    for path, content, time in _measured(results, "step-*.json"):
        for run in content["runs"]:
            setting = run["setting"]
            if not setting.get("half", True):  # older files do not say that they are in bf16
                continue
            for name in OURS.keys() & run["results"].keys():
                seconds = run["results"][name]["us_per_image_timestep"] * 1e-6 * setting["timesteps"] * setting["batch"]
                where = {key: setting[key] for key in ("network", "image_size", "timesteps", "batch")}
                yield time, Step(**where, memory=OURS[name], seconds=seconds, source=path.name)


def _in_training(results: Path) -> Iterator[tuple[str, Step]]:
    """Yield the steps of benchmarks.imagenet that read no files. They include augmentation."""
    for path, content, time in _measured(results, "imagenet.json"):
        settings = content["settings"]
        if settings["precision"] != PRECISION:
            continue
        for run in content["training"]:
            if run.get("images") == "on the device":  # a mode that failed has no images
                where = {"image_size": settings["size"], "timesteps": settings["timesteps"], "batch": run["batch"]}
                seconds = run["batch"] / run["images_per_second"]
                yield time, Step(run["network"], **where, memory=run["memory"], seconds=seconds, source=path.name)


def _in_the_loop(results: Path) -> Iterator[tuple[str, Step]]:
    """Yield the bare steps of benchmarks.loop."""
    for path, content, time in _measured(results, "loop-*.json"):
        recipe, found = recipes.get(content["recipe"]), content["result"]
        if recipe.precision != PRECISION:
            continue
        seconds = sum(found["bare_step_seconds"].values()) / len(found["bare_step_seconds"])
        size = expected(recipe.data, size=recipe.image_size).size
        where = {"image_size": size, "timesteps": found["timesteps"], "batch": found["batch"]}
        yield time, Step(recipe.network, **where, memory=recipe.memory, seconds=seconds, source=path.name)


def _measured(results: Path, pattern: str) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Yield the files of this GPU and their times. Old files without a time count as the oldest."""
    for path in sorted(results.glob(pattern)):
        content = json.loads(path.read_text())
        facts = content.get("record") or content["environment"]
        if facts["device"] == DEVICE:
            yield path, content, facts.get("time") or facts.get("date") or ""


def work(network: str, image_size: int) -> Work:
    """Return the work of a network."""
    with torch.device("meta"):
        built = models.build(network, in_channels=CHANNELS, image_size=image_size)
    return Work.of(built, (CHANNELS, image_size, image_size))


def seconds_per_layer(found: Sequence[Step], works: dict[Subject, Work]) -> float:
    """Fit the fixed time of a step: a line through the steps of each sweep of batches, and the mean over sweeps."""
    sweeps: defaultdict[tuple[Any, ...], list[Step]] = defaultdict(list)
    for step in found:
        sweeps[step.subject, step.timesteps, step.memory].append(step)
    constants = []
    for (subject, *_), sweep in sweeps.items():
        if len(sweep) >= SWEEP:
            seconds = np.array([step.seconds for step in sweep])
            _, constant = np.polyfit([step.units for step in sweep], seconds, 1, w=1 / seconds)  # relative errors
            constants.append(constant / works[subject].layers)
    return float(np.mean(constants))


def costs(found: Sequence[Step], works: dict[Subject, Work], per_layer: float) -> tuple[float, float]:
    """Fit the seconds per multiplication and per neuron to the largest steps of all networks."""
    largest = {step.subject: step for step in sorted(found, key=lambda s: s.units) if step.memory == "speed"}
    counted = np.array([[works[s].multiplications, works[s].neurons] for s in largest], float)
    per_unit = [(step.seconds - per_layer * works[s].layers) / step.units for s, step in largest.items()]
    relative = counted / np.array(per_unit)[:, None]
    multiplication, neuron = np.linalg.lstsq(relative, np.ones(len(relative)))[0]
    if min(multiplication, neuron) <= 0:
        raise ValueError("the measured networks are too similar to tell multiplications from neurons; add others")
    return float(multiplication), float(neuron)


def content(found: Sequence[Step]) -> dict[str, Any]:
    """Return the content of the package's file for these steps."""
    works = {subject: work(*subject) for subject in sorted({step.subject for step in found})}
    per_layer = seconds_per_layer(found, works)
    per_multiplication, per_neuron = costs(found, works, per_layer)
    return {
        "device": DEVICE,
        "precision": PRECISION,
        "seconds_per_layer": _rounded(per_layer),
        "seconds_per_multiplication": _rounded(per_multiplication),
        "seconds_per_neuron": _rounded(per_neuron),
        "networks": [{"network": n, "image_size": size, **vars(w)} for (n, size), w in works.items()],
        "steps": [vars(step) | {"seconds": _rounded(step.seconds)} for step in found],
    }


def _rounded(value: float) -> float:
    """Round to five digits: more are noise, and would differ between machines."""
    return float(f"{value:.4e}")


def hours() -> str:
    """Return a table of all recipes with a known number of training images, on one GPU and on a node of eight."""
    rows = []
    for recipe in map(recipes.get, RECIPES):
        data = expected(recipe.data, size=recipe.image_size, timesteps=recipe.timesteps)
        if not data.images:
            continue
        one, *_, eight = scale.forecast(recipe, data, scale.cluster(8, 1)).predictions
        assert one.recipe is not None
        assert eight.recipe is not None
        cells = (duration(one.recipe), one.kind, duration(eight.recipe), f"{100 * eight.efficiency:.0f} %", eight.kind)
        rows.append((f"`{recipe.name}`", str(recipe.batch_size), *cells))
    headings = ("recipe", "batch", "one H200", "its step is", "eight H200s", "efficiency", "their step is")
    return table(headings, rows)


def with_hours(text: str) -> str:
    """Return the document with a new table."""
    return rewritten(text, {"hours": hours}, "tools.steptimes")


if __name__ == "__main__":
    write_json(FILE, content(steps(RESULTS)))
    DOCUMENT.write_text(with_hours(DOCUMENT.read_text()))
