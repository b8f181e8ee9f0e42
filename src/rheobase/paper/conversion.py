"""Table 1 with measured conversions: converted networks next to directly trained ones, at 1, 2, 4, ... timesteps.

The results of each converted network are kept in a file and not measured again. So the command can be stopped and
repeated, or run for a few methods at a time.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from rheobase import recipes, train
from rheobase.data import Dataset
from rheobase.data.feed import Feed, preprocessed
from rheobase.deploy.network import Network, node_name
from rheobase.files import finite_or_null
from rheobase.paper import others
from rheobase.paper.result import CPU, Result
from rheobase.paper.training import table
from rheobase.recipes import Recipe
from rheobase.report.charts import Chart
from rheobase.tasks.compare import Sizes
from rheobase.tasks.convert import convert_run
from rheobase.tasks.open import open_trained
from rheobase.tasks.sweep import measured
from rheobase.tasks.verify import recognised
from rheobase.train import checkpoint
from rheobase.train.record import write_result
from rheobase.train.runs import Run, load_network
from rheobase.train.sweep import doubling

LONGEST = 512
LONGEST_ANEW = 128  # timesteps for methods that need a pass for each number of timesteps
TENTH = 10  # every tenth test image is also run for longer
LONGER = 4  # times as many timesteps for these
NEAR = 0.5  # points below the ReLU network
FEW = 8  # timesteps
EPOCHS = 6  # of small networks on the digits
PARTS = "table1-parts"
LOWEST = 60.0  # percent in the charts


@dataclass(frozen=True)
class Way:
    """A conversion method with its options: one row of the table."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    longer: bool = False
    """Whether it needs so many timesteps that only some test images are run to the end."""
    anew: bool = False
    """Whether each number of timesteps needs a conversion and a pass of its own."""


WAYS = {
    "data-norm": Way("data-norm", longer=True),
    "data-norm-max": Way("data-norm", {"percentile": 100.0}, longer=True),
    "spike-norm": Way("spike-norm", longer=True),
    "rmp": Way("rmp"),
    "calibrated": Way("calibrated", anew=True),
    "qcfs": Way("qcfs"),
}


@dataclass(frozen=True)
class Curve:
    """Accuracy (in percent) and energy of a network against its timesteps."""

    label: str
    points: list[dict[str, Any]]
    """Points of a converted network include `relu`, the accuracy of the original network on the same images."""
    timesteps: int | None = None
    """Timesteps that it was trained with; None for a converted network."""
    data: str = ""
    anew: bool = False
    """Whether every point is a conversion of its own."""

    @property
    def near(self) -> dict[str, Any] | None:
        """The first point that is close to the ReLU network."""
        return next((p for p in self.points if "relu" in p and p["accuracy"] >= p["relu"] - NEAR), None)


def table1(
    runs: Sequence[Path],
    *,
    folder: Path,
    data: Path | None = None,
    device: torch.device = CPU,
    ways: Sequence[str] | None = None,
    longest: int | None = None,
) -> Iterator[Result]:
    """Compare spiking runs with conversions of ReLU runs. Without runs, train small networks on the digits.

    Measurements are kept in `folder`.
    """
    for name in ways or ():
        if name not in WAYS:
            raise ValueError(f"unknown method '{name}'; choose from {', '.join(WAYS)}")
    if not runs:
        yield from _stand_ins(folder, ways, longest or 32)
        return
    opened = [open_trained(path) for path in runs]
    spiking = [run for run in opened if run.recipe.neuron not in ("relu", "qcfs")]
    relus = [run for run in opened if run not in spiking]
    base = table("table1", [run.folder for run in spiking]) if spiking else None
    names = told_apart(spiking) | told_apart(relus)
    curves = [(names[run.folder], curve) for run in spiking if (curve := trained_curve(run)) is not None]
    jobs = [(run, name) for run in relus for name in ways or WAYS if (name == "qcfs") == (run.recipe.neuron == "qcfs")]
    if relus and not jobs:
        raise ValueError(f"none of these runs can be converted by {', '.join(ways or ())}; leave out --methods")
    if not jobs:
        yield result(base, labelled(curves), "trained runs", device, 0)
    for i, (run, name) in enumerate(jobs):
        options: dict[str, Any] = {"data": data, "device": device, "longest": longest}
        part = converted_part(run, name, folder / PARTS, called=names[run.folder], **options)
        curves.append((names[run.folder], converted_curve(name, run, part)))
        yield result(base, labelled(curves), "trained runs", device, len(jobs) - i - 1)


def _stand_ins(folder: Path, ways: Sequence[str] | None, longest: int) -> Iterator[Result]:
    base = table("table1", [], epochs=EPOCHS)
    curves = [
        Curve(f"direct, T = {row['timesteps']}", [_stand_in(row)], row["timesteps"], row["data"])
        for row in base.data["rows"]
    ]
    chosen = list(ways or WAYS)
    with TemporaryDirectory() as temporary:
        made: dict[str, Run] = {}
        for i, name in enumerate(chosen):
            neuron = "qcfs" if name == "qcfs" else "relu"
            if neuron not in made:
                recipe = recipes.get("demo").changed([f"neuron={neuron}", "timesteps=1", f"epochs={EPOCHS}"])
                made[neuron] = train.fit(recipe, out=Path(temporary) / neuron, device="cpu")
            part = converted_part(made[neuron], name, Path(temporary) / PARTS, longest=longest)
            curves.append(converted_curve(name, made[neuron], part))
            yield result(base, curves, base.source, CPU, len(chosen) - i - 1)


def _stand_in(row: Mapping[str, Any]) -> dict[str, Any]:
    costs = ("firing_rate", "additions", "multiplications", "joule")
    return {"timesteps": row["timesteps"], "accuracy": row["last"], **{name: row[name] for name in costs}}


def told_apart(runs: Sequence[Run]) -> dict[Path, str]:
    """Return a name for the folder of each run: the last parts of its path, as few as tell all runs apart."""
    paths = {run.folder: run.folder.absolute().parts for run in runs}
    few = 1
    while len({path[-few:] for path in paths.values()}) < len({*paths.values()}):
        few += 1
    return {folder: "/".join(path[-few:]) for folder, path in paths.items()}


def labelled(curves: Sequence[tuple[str, Curve]]) -> list[Curve]:
    """Return the curves of runs with these names. Labels that would be the same name the run too."""
    count = Counter(curve.label for _, curve in curves)
    return [replace(c, label=f"{c.label} ({name})") if count[c.label] > 1 else c for name, c in curves]


def trained_curve(run: Run) -> Curve | None:
    """Return the curve of a spiking run from its folder: its last test, and other timesteps if they were recorded."""
    rows = [row for row in run.rows() if "test_accuracy" in row]
    if not rows:
        return None
    sizes, recipe = Sizes.of(run), run.recipe
    found = {recipe.timesteps: (rows[-1]["test_accuracy"], rows[-1]["firing_rates"])}
    if (run.folder / "timesteps.json").exists():
        kept = run.read("timesteps.json")
        by_steps = kept.get("timesteps", kept)
        found |= {int(t): (own["accuracy"], own["firing_rates"]) for t, own in by_steps.items()}
    points = []
    for t, (accuracy, by_path) in sorted(found.items()):
        rates = {node_name(path): rate for path, rate in by_path.items()}
        points.append({"timesteps": t, "accuracy": 100 * accuracy, **sizes.costs(rates, t)})
    kind = "direct" if run.start is None else f"trained from {run.start['from']}"
    label = f"{kind}, {recipe.network}, T = {recipe.timesteps}{_tested_on(run)}"
    return Curve(label, points, recipe.timesteps, recipe.data + _tested_on(run))


def _tested_on(run: Run) -> str:
    """Return what the label of a curve must say about its images."""
    return ", held-out training images" if run.data.holdout else ""


def converted_curve(name: str, run: Run, part: dict[str, Any]) -> Curve:
    """Return the curve of a converted network from its measurements."""
    points = [p | {"accuracy": 100 * p["accuracy"], "relu": 100 * p["relu"]} for p in part["points"]]
    label, data = f"{name}, {run.recipe.network}{_tested_on(run)}", run.recipe.data + _tested_on(run)
    return Curve(label, points, data=data, anew=WAYS[name].anew)


def converted_part(
    run: Run,
    name: str,
    folder: Path,
    *,
    data: Path | None = None,
    device: torch.device = CPU,
    longest: int | None = None,
    called: str | None = None,
) -> dict[str, Any]:
    """Measure the run converted in this way. A file in `folder` keeps the results, point by point where possible.

    The file is named after the run's folder, or as the run is `called`.
    """
    longest = longest or (LONGEST_ANEW if WAYS[name].anew else LONGEST)
    way, tests = WAYS[name], [row for row in run.rows() if "test_accuracy" in row]
    if not tests:
        raise ValueError(f"{run.folder} has no test accuracy yet; let its first evaluation finish")
    called, tested = called or run.folder.name, _checksum(tests[-1])
    path = folder / f"{called.replace('/', '-')}-{name}.json"
    asked = {"way": name, "method": way.method, "options": way.options, "step": tests[-1]["step"]}
    asked |= {"longest": longest} if way.longer else {}  # above it, only some images are used
    kept = _kept(path, asked, run, tests[-1])
    known = {point["timesteps"] for point in kept.get("points", [])}
    missing = [t for t in doubling(longest) if t not in known]
    if not missing:
        return kept
    bench = Bench(run, way, run.open_data(data), tests[-1]["test_accuracy"], data, device)
    about = {"asked": asked, "run": called, "recipe": asdict(run.recipe), "tested": tested}
    about |= {"sha256": run.trained().sha256()}
    seconds, began, points = kept.get("seconds", 0.0), time.monotonic(), kept.get("points", [])
    for found in bench.one_by_one(missing) if way.anew else [bench.all_at_once(longest)]:
        points = sorted([*points, *found] if way.anew else found, key=lambda p: p["timesteps"])
        kept = {**about, "points": points, "seconds": seconds + time.monotonic() - began}
        to_come = len(set(missing).difference(point["timesteps"] for point in points))
        content = bench.dataset.info.fingerprint
        write_result(path, finite_or_null(kept), to_come=to_come, device=device, seed=0, data=content)
    return kept


def _checksum(row: dict[str, Any]) -> str:
    """Return what identifies the row of a test: it has the firing rates of all layers, and the time."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _kept(path: Path, asked: dict[str, Any], run: Run, test: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the file if it matches. A run without weights must have the same last `test`.

    Files of earlier versions tell only its accuracy.
    """
    if not path.exists():
        return {}
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        relus = [point["relu"] for point in kept["points"] if point["timesteps"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it to measure again") from None
    if kept.get("asked") != asked:
        return {}
    if checkpoint.newest_step(run.checkpoints) > 0:
        return kept if kept.get("sha256") == run.trained().sha256() else {}
    accuracy = relus[0] if relus else None  # the first one is of all test images
    if kept["tested"] != _checksum(test) if "tested" in kept else accuracy not in (None, test["test_accuracy"]):
        raise ValueError(
            f"{path} was measured on other weights than those of {run.folder}, which were not kept; remove it, or "
            "measure again with the run itself"
        )
    return kept


@dataclass(frozen=True)
class Bench:
    """The setup for measuring conversions of a run."""

    run: Run
    way: Way
    dataset: Dataset
    relu: float
    """Accuracy of the ReLU network on all test images."""
    data: Path | None
    device: torch.device

    def one_by_one(self, timesteps: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
        """Measure a separate network for each number of timesteps."""
        for t in timesteps:
            yield self._all_images(self._converted(t), [t])

    def all_at_once(self, longest: int) -> list[dict[str, Any]]:
        """Measure one network at all numbers of timesteps, the largest ones on fewer images."""
        network = self._converted(longest)
        points = self._all_images(network, doubling(longest))
        if self.way.longer:
            few = list(_tenth(self.dataset, self._recipe, self.device))
            model, images = load_network(self.run).float().to(self.device), sum(len(labels) for _, labels in few)
            about = {"images": images, "relu": recognised(model, few, 1).double().mean().item()}
            longer = [t for t in doubling(LONGER * longest) if t > longest]
            points += self._measured(network, few, longer, about)
        return points

    def _all_images(self, network: Network, timesteps: Sequence[int]) -> list[dict[str, Any]]:
        batches = Feed(self.dataset, self._recipe, self.device, torch.float32).testing()
        about = {"images": len(self.dataset.test), "relu": self.relu}
        return self._measured(network, batches, timesteps, about)

    def _measured(
        self,
        network: Network,
        batches: Iterable[tuple[Tensor, Tensor]],
        timesteps: Sequence[int],
        about: dict[str, Any],
    ) -> list[dict[str, Any]]:
        found = measured(network, batches, timesteps, self._recipe, self.dataset.info, self.device)
        return [asdict(one) | about for one in found]

    def _converted(self, timesteps: int) -> Network:
        options: dict[str, Any] = {"data": self.data, "device": self.device, **self.way.options}
        return convert_run(self.run, self.way.method, timesteps, **options)

    @property
    def _recipe(self) -> Recipe:
        return replace(self.run.recipe, precision="fp32")


def _tenth(dataset: Dataset, recipe: Recipe, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of every tenth test image."""
    index = torch.arange(0, len(dataset.test), TENTH)
    images, labels = preprocessed(dataset, recipe, dataset.test, index, torch.float32)
    for x, y in zip(images.split(256), labels.split(256), strict=True):
        yield x.to(device), y.to(device)


def result(base: Result | None, curves: list[Curve], source: str, device: torch.device, to_come: int) -> Result:
    """Return the table so far."""
    rows = [asdict(curve) | {"near": curve.near and curve.near["timesteps"]} for curve in curves]
    converted = [curve for curve in curves if curve.timesteps is None]
    before = base.comparison if base else others.sentences("table1")
    comparison = [*before, *map(_sentence, converted), *_verdict(curves)]
    content = {"rows": rows, "trained": base.data["rows"] if base else [], "published": others.rows("table1")}
    return Result("table1", "Table 1: accuracy", source, content, comparison, charts(content), device, to_come)


def charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return the charts of a kept result. The y axis begins where the curves can be told apart, if all get there."""
    found = []
    for by, name, unit in (("timesteps", "timesteps", 1), ("joule", "energy per image at 45 nm, mJ", 1e3)):
        series = {row["label"]: own for row in content["rows"] if (own := _series(row["points"], by, unit))[0]}
        low = LOWEST if all(max(ys) > LOWEST for _, ys in series.values()) else None
        title = f"accuracy against {name.split()[0]}"
        found += [Chart(title, name, "test accuracy, %", series, log_x=True, low=low)] if series else []
    return found


def _series(points: Sequence[Mapping[str, Any]], by: str, unit: float) -> tuple[list[float], list[float]]:
    known = [point for point in points if point[by] is not None]
    return [unit * point[by] for point in known], [point["accuracy"] for point in known]


def _sentence(curve: Curve) -> str:
    most = max(p["images"] for p in curve.points)
    shown = ", ".join(
        f"{p['accuracy']:.2f} % at T = {p['timesteps']}" + (f" ({p['images']} images)" if p["images"] < most else "")
        for p in curve.points
    )
    near = curve.near
    if near is None:
        end = f"never within {NEAR:g} points of the ReLU network ({curve.points[0]['relu']:.2f} %)"
    else:
        end = (
            f"within {NEAR:g} points of the ReLU network ({near['relu']:.2f} %) at T = {near['timesteps']}, for "
            f"{1e3 * near['joule']:.3g} mJ"
        )
    how = f" (converted anew for each T, up to {curve.points[-1]['timesteps']})" if curve.anew else ""
    return f"{curve.label}{how}: {shown}; {end}."


def _verdict(curves: list[Curve]) -> list[str]:
    """Check the paper's claim that few timesteps are enough for direct training, but not for conversion."""
    converted = [c for c in curves if c.timesteps is None]
    data = {c.data for c in converted}
    direct = [c for c in curves if c.timesteps == 2 and c.label.startswith("direct") and {c.data} == data]
    if not direct or not converted:
        return []
    own = max(p["accuracy"] for c in direct for p in c.points if p["timesteps"] == 2)
    ahead = []
    for curve in converted:
        few = [p for p in curve.points if p["timesteps"] <= FEW and p["accuracy"] >= own]
        if few:
            ahead.append(f"{curve.label} ({few[0]['accuracy']:.2f} % at T = {few[0]['timesteps']})")
    if ahead:
        return [f"Direct training at T = 2, {own:.2f} %, is reached within T = {FEW} by {', '.join(ahead)}."]
    return [f"Direct training at T = 2, {own:.2f} %, is ahead of every converted network up to T = {FEW}."]
