"""Tables of all kept results, which python -m tools.documents writes to docs/results.md.

results/cifar10/t2 is a run, or holds one for every seed: seed-0, seed-1, and so on. A network for several T is in
results/cifar10/one, or else it is the one in t6; it is compared with the networks in t1, t2 and so on. Tables without
results are left out.
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rheobase.paper.training import PUBLISHED
from rheobase.recipes import RECIPES, Recipe, get
from rheobase.recipes.settings import as_text, differences
from rheobase.train.runs import Run

ROOT = Path(__file__).parents[1]
SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagewoof": "Imagewoof"}  # folders of results/ with runs
UNSAID = {"name", "timesteps", "seed", "evaluate_every", "memory"}  # settings that have a column, or change no accuracy
SEVERAL = ("1", "2", "4", "6")  # T of a network that is meant for several
COMPARED = ("torch", "triton", "spikingjelly", "snntorch")  # packages whose versions matter for a training step
PAPER = PUBLISHED["table1"]  # accuracies in percent, by data, network and T
CONTENDERS = {  # of benchmarks.step, in words
    "floor": "convolutions and linear layers alone",
    "rheobase-speed": "Rheobase",
    "rheobase-packed": "Rheobase, `memory=packed`",
    "rheobase-recompute": "Rheobase, `memory=recompute`",
    "loop": "the equations in PyTorch, a loop over time",
    "loop-compiled": "the same, torch.compile",
    "relu": "ReLU network of this shape, T x N images",
    "relu-graph": "ReLU network, CUDA graph",
    "relu-compiled": "ReLU network, torch.compile",
    "spikingjelly": "SpikingJelly",
    "spikingjelly-compiled": "SpikingJelly, torch.compile",
    "spikingjelly-rect": "SpikingJelly, rectangular surrogate",
    "snntorch": "snnTorch",
}
TARGET = max(accuracy for (data, _, _), accuracy in PAPER.items() if data == "cifar10")  # the paper's best


@dataclass(frozen=True)
class Kept:
    """The runs of one recipe in results/, one per seed."""

    folder: Path
    runs: tuple[Run, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe of all runs, except for the seed."""
        return self.runs[0].recipe

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.recipe.name

    @property
    def words(self) -> str:
        """Name of the recipe, and the settings in which the runs differ from it."""
        changed = differences(self.recipe, get(self.name)) if self.name in RECIPES else {}
        settings = (f"`{key}={as_text(value)}`" for key, (value, _) in changed.items() if key not in UNSAID)
        return ", ".join([f"`{self.name}`", *settings])

    @property
    def seeds(self) -> str:
        """Number of seeds in brackets, if there are several."""
        return f" ({len(self.runs)} seeds)" if len(self.runs) > 1 else ""

    @property
    def paper(self) -> float | None:
        """The paper's accuracy on these data, with this network, at this T."""
        return PAPER.get((self.recipe.data, self.recipe.network, self.recipe.timesteps))

    @cached_property
    def forked(self) -> bool:
        """Whether the first epochs are those of another run."""
        return any(_forked_at(run) for run in self.runs)

    @cached_property
    def curves(self) -> list[list[tuple[float, float]]]:
        """Seconds and test accuracy in percent, for every evaluation of every run."""
        return [
            [
                (row["elapsed"], 100 * row["test_accuracy"])
                for row in run.rows()
                if "test_accuracy" in row and row["step"] > _forked_at(run)
            ]
            for run in self.runs
        ]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after the last epoch, in percent."""
        return [curve[-1][1] for curve in self.curves]

    @property
    def last(self) -> str:
        """Accuracy after the last epoch, in words."""
        return spread(self.accuracies) + self.seeds

    @property
    def best(self) -> str:
        """Accuracy of the best epoch, in words."""
        return spread([max(accuracy for _, accuracy in curve) for curve in self.curves]) + self.seeds

    @property
    def seconds(self) -> str:
        """Mean seconds from the start of the process to its end."""
        return f"{mean(run.rows()[-1]['elapsed'] for run in self.runs):.0f}"

    @property
    def seconds_to_target(self) -> str:
        """Mean seconds until an evaluation reaches the paper's best; empty if a run never does, or is forked."""
        reached = [next((s for s, accuracy in curve if accuracy >= TARGET), None) for curve in self.curves]
        found = [seconds for seconds in reached if seconds is not None]
        return "" if self.forked or len(found) < len(reached) else f"{mean(found):.0f}"

    @cached_property
    def by_timesteps(self) -> dict[str, list[dict[str, Any]]]:
        """What every run measured at other numbers of timesteps; empty if one of them did not.

        Older files do not say in which precision that was.
        """
        files = [run.folder / "timesteps.json" for run in self.runs]
        if not all(file.exists() for file in files):
            return {}
        found = [content.get("timesteps", content) for content in map(_json, files)]
        return {
            t: [{"precision": run.precision} | one[t] for run, one in zip(self.runs, found, strict=True)]
            for t in found[0]
        }

    @property
    def device(self) -> str:
        """Devices of the runs."""
        return ", ".join(sorted({facts(run.read("environment.json"))["device"] for run in self.runs}))


def kept(folder: Path) -> list[Kept]:
    """Return what is kept in and below a folder: runs, or folders with a run per seed."""
    groups: dict[Path, list[Run]] = {}
    for path in sorted(file.parent for file in folder.rglob("metrics.jsonl")):
        groups.setdefault(path.parent if path.name.startswith("seed-") else path, []).append(Run(path))
    for path, runs in groups.items():
        kinds = {(replace(run.recipe, seed=0), run.precision) for run in runs}
        if len(kinds) > 1 or len({run.recipe.seed for run in runs}) < len(runs):
            raise ValueError(
                f"{path} holds runs that do not differ in their seed alone; remove what the others replace, or keep it "
                "in another folder"
            )
    return [Kept(path, tuple(runs)) for path, runs in groups.items()]


def spread(values: list[float]) -> str:
    """Return a percentage; for several runs the mean and the standard deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _forked_at(run: Run) -> int:
    """Return the step at which a run was forked from another; 0 if it was not."""
    step: int = (run.read("environment.json").get("forked") or {"step": 0})["step"]
    return step


def step_table(path: Path) -> str:
    """Return time and memory of a training step, ours and others'."""
    content = _json(path)
    how, (run,) = facts(content), content["runs"]
    setting, results = run["setting"], run["results"]
    network = setting["network"].replace("resnet", "ResNet-")
    own = results["rheobase-speed"]["us_per_image_timestep"]
    installed = how.get("packages") or how["versions"]
    versions = ", ".join(f"{name} {installed[name]}" for name in COMPARED if name in installed)
    gpu = setting["device"] == "cuda"
    where = f"one {how['device']}" if gpu else f"{how['threads']} cores ({how['device']})"
    precision = "bf16" if setting.get("half", gpu) else "fp32"
    lines = [
        f"Training step of {network} on {where}, {precision}, T = {setting['timesteps']}, N = {setting['batch']} "
        f"({versions}; `{how['command']}`, all in one run).",
        "",
        f"| | {'µs' if gpu else 'ms'} per image and timestep | peak memory, GiB | time relative to ours |",
        "|---|---|---|---|",
    ]
    for name, found in results.items():
        peak = f"{found['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in found else ""
        time = found["us_per_image_timestep"]
        lines.append(f"| {CONTENDERS[name]} | {time / (1 if gpu else 1e3):.1f} | {peak} | {time / own:.2f} |")
    return "\n".join(lines)


def accuracy_table(name: str, runs: list[Kept], root: Path) -> str:
    """Return accuracies of the kept runs on a dataset, and how long they took."""
    words = "measured in the same way"
    if in_paper := name == "cifar10":
        words = (
            "on the unmodified test images (`rheobase train RECIPE`). Seconds are counted from the start of the "
            "process and include evaluation and checkpoints. A forked run (`python -m tools.fork`) takes over the "
            "first epochs of another run, and its seconds include them"
        )
    headings = [
        "recipe",
        "T",
        *(["paper, %"] if in_paper else []),
        "last epoch, %",
        "best epoch, %",
        "epochs",
        "seconds",
        *([f"seconds to {TARGET} %"] if in_paper else []),
        "device",
    ]
    lines = [
        f"{SETS[name]}: test accuracy in {precisions(runs)}, {words}.",
        "",
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
    ]
    for group in runs:
        recipe, done = group.recipe, group.runs[0].rows()[-1]["epoch"]
        cells = [
            f"[{group.words}]({link(group.folder, root)})",
            str(recipe.timesteps),
            *([str(group.paper or "")] if in_paper else []),
            group.last,
            group.best,
            f"{done} of {recipe.epochs}{', forked' if group.forked else ''}",
            group.seconds,
            *([group.seconds_to_target] if in_paper else []),
            group.device,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def precisions(runs: list[Kept]) -> str:
    """Return the precisions in which runs trained and were evaluated."""
    return alternatives(run.precision for group in runs for run in group.runs)


def alternatives(words: Iterable[str]) -> str:
    """Return each of these words once, with `or` between them."""
    return " or ".join(sorted(set(words)))


def link(folder: Path, root: Path) -> str:
    """Return a link from docs/ to a folder of results."""
    return f"../results/{folder.relative_to(root).as_posix()}"


def timesteps_table(runs: list[Kept]) -> str:
    """Return the accuracy of kept runs at other numbers of timesteps than they were trained with."""
    columns = list(runs[0].by_timesteps)
    every = (one for group in runs for measured in group.by_timesteps.values() for one in measured)
    precision = alternatives(one["precision"] for one in every)
    lines = [
        f"The same networks at other numbers of timesteps: test accuracy in %, in {precision} (mean spikes per neuron "
        "and timestep).",
        "",
        f"| recipe | trained with T | {' | '.join(f'T = {t}' for t in columns)} |",
        "|" + "---|" * (len(columns) + 2),
    ]
    for group in runs:
        cells = []
        for measured in group.by_timesteps.values():
            rates = [rate for one in measured for rate in one["firing_rates"].values()]
            cells.append(f"{spread([100 * one['accuracy'] for one in measured])} ({mean(rates):.3f})")
        lines.append(f"| {group.words}{group.seeds} | {group.recipe.timesteps} | {' | '.join(cells)} |")
    return "\n".join(lines)


def one_network_table(one: Kept, runs: list[Kept], root: Path) -> str:
    """Return the accuracy of one network at several T, and what it loses against networks trained for each T."""
    lines = [
        f"One network for several T: {one.words}{one.seeds}, trained with T = {one.recipe.timesteps}, beside networks "
        "that were trained for each T. Test accuracy in %.",
        "",
        "| T | one network | trained for this T | points lost |",
        "|---|---|---|---|",
    ]
    trained = {group.folder.name: group for group in runs}
    for t in SEVERAL:
        own, other = [100 * measured["accuracy"] for measured in one.by_timesteps[t]], trained.get(f"t{t}")
        cells = [t, spread(own), "not run", ""]
        if other is not None:
            lost = round(mean(other.accuracies) - mean(own), 2) + 0.0  # never -0.00
            cells[2:] = [f"[{other.last}]({link(other.folder, root)})", f"{lost:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def deployment_table(path: Path) -> str:
    """Return the accuracy of a trained network and its deployed versions, and what the same weights score elsewhere."""
    content = _json(path)
    recipe, how, results = content["recipe"], facts(content), content["results"]
    name = Path(shlex.split(how["command"])[3]).name  # python -m benchmarks.deployment RUN
    words = f"`{name}` (T = {recipe['timesteps']}) in float32, as trained and as deployed (`{how['command']}`)."
    if (shipped := path.parent / "shipped" / f"{name}.json").exists():
        network = _shipped(shipped)
        trained, own = (f"{100 * network[key]:.2f}" for key in ("trained_accuracy", "accuracy"))
        words += (
            f" In {network['precision']}, the precision of its training, the same weights score {own} %. Before they "
            f"were rounded to 8 bits, they scored {trained} % in that precision."
        )
    lines = [words, "", "| | test accuracy, % | from its file, % | size of the file, MiB |", "|---|---|---|---|"]
    for version, found in results.items():
        if "accuracy" in found and "bytes" not in found:
            cells = [f"{100 * found['accuracy']:.2f}", "", ""]
            if file := results.get(f"{version} file"):
                cells[1:] = [f"{100 * file['accuracy']:.2f}", f"{file['bytes'] / 2**20:.1f}"]
            lines.append(f"| {version} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shipped_table(paths: list[Path]) -> str:
    """Return the networks that come with the package."""
    lines = [
        "Trained networks that come with the package, with 8-bit weights. Every command takes their names in place of "
        "a run, and `rheobase train RECIPE --from NAME` starts from one.",
        "",
        "| name | T | accuracy as trained, % | accuracy with 8 bits, % | both in | MiB |",
        "|---|---|---|---|---|---|",
    ]
    for path in paths:
        found = _shipped(path)
        trained, own = (f"{100 * found[key]:.2f}" for key in ("trained_accuracy", "accuracy"))
        size, steps = f"{found['bytes'] / 2**20:.1f}", found["recipe"]["timesteps"]
        lines.append(f"| `{found['name']}` | {steps} | {trained} | {own} | {found['precision']} | {size} |")
    return "\n".join(lines)


def _shipped(path: Path) -> dict[str, Any]:
    """Return what tools.ship wrote. Older files do not say the precision: it was that of the recipe."""
    found = _json(path)
    return {"precision": found["recipe"]["precision"]} | found


def loop_sentence(path: Path) -> str:
    """Return what the training loop adds to the bare step."""
    content = _json(path)
    found, how = content["result"], facts(content)
    return (
        f"The training loop of `{content['recipe']}` adds {found['overhead_percent']:.1f} % to the bare step on one "
        f"{how['device']} (`{how['command']}`); an evaluation takes {found['evaluation_seconds']:.2f} s, "
        f"a checkpoint {found['checkpoint_seconds']:.2f} s."
    )


def tables(results: Path = ROOT / "results") -> list[str]:
    """Return all tables for which there are results."""
    networks = sorted((results / "shipped").glob("*.json"))
    return [
        *(table for name in SETS for table in _tables_of_runs(name, results)),
        *([shipped_table(networks)] if networks else []),
        *(deployment_table(path) for path in sorted(results.glob("deploy-*.json"))),
        *(step_table(path) for path in sorted(results.glob("step-*.json")) if _is_comparison(_json(path))),
        *(loop_sentence(path) for path in sorted(results.glob("loop-*.json"))),
    ]


def _tables_of_runs(name: str, results: Path) -> list[str]:
    """Return the tables for one dataset."""
    runs = kept(results / name)
    measured = [group for group in runs if group.by_timesteps]
    return [
        *([accuracy_table(name, runs, results)] if runs else []),
        *([timesteps_table(measured)] if measured else []),
        *(one_network_table(group, runs, results) for group in _for_several(measured)),
    ]


def _for_several(runs: list[Kept]) -> list[Kept]:
    """Return the network that is meant for several T, or else the one for the largest T, if any was measured."""
    by_name = {group.folder.name: group for group in runs}
    found = by_name.get("one") or by_name.get(f"t{SEVERAL[-1]}")
    return [] if found is None else [found]


def _is_comparison(content: dict[str, Any]) -> bool:
    """Return whether this compares with other libraries at one setting: no sweep, older version or other neurons."""
    run, *others = content["runs"]
    return not others and "before" not in content and run["results"].keys() <= CONTENDERS.keys()


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def facts(content: dict[str, Any]) -> dict[str, Any]:
    """Return how a result was made. Older files call the record `environment`, or consist of nothing else."""
    return content.get("record") or content.get("environment") or content
