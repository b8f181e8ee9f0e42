"""Compare runs by what their folders say, without weights or data. Runs that differ only in their seed are one row."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

from rheobase import plugins
from rheobase.analysis.fanout import FanOut, fan_out
from rheobase.analysis.sizes import neurons
from rheobase.analysis.variants import NeuNorm
from rheobase.data import DataInfo
from rheobase.data.expectation import EXPECTED
from rheobase.deploy import shipped
from rheobase.deploy.folding import fold
from rheobase.deploy.network import Network, node_name
from rheobase.files import first_line
from rheobase.nn import ReluSoma, somas
from rheobase.train import origins
from rheobase.train.runs import Row, Run, network_for

NOT_KNOWN = "not known"
NO_INPUTS = "energy unknown, because the run did not record how many inputs are zero"  # as earlier versions


@dataclass(frozen=True)
class Spread:
    """Mean and deviation of a number over runs."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for a single run."""
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one or more values."""
        return cls(mean(values), stdev(values) if len(values) > 1 else None, len(values))

    @classmethod
    def of_known(cls, values: Iterable[float | None]) -> "Spread | None":
        """Return the spread of the known values; None if none is known."""
        known = [value for value in values if value is not None]
        return cls.of(known) if known else None


@dataclass(frozen=True)
class Member:
    """One run. None means not known."""

    folder: str
    seed: int
    accuracy_last: float | None
    """Test accuracy after the last evaluated epoch."""
    accuracy_best: float | None
    """Test accuracy of the best epoch."""
    best_epoch: int | None
    seconds: float | None
    firing_rate: float | None
    """Spikes per neuron and timestep, over all neurons."""
    joule: float | None
    """Energy of one inference, from the firing rates; see `analysis.fanout`."""
    not_known: str | None
    """Why the firing rate or the energy is not known."""


@dataclass(frozen=True)
class Point:
    """Accuracy of several runs after an epoch."""

    epoch: int
    accuracy: Spread


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, and their results."""

    name: str
    """Folder of the run, or the folder that holds the runs of all seeds."""
    runs: list[Member]
    settings: dict[str, Any]
    """What the runs share: the settings of the recipe, and `start`, `device`, `data_content` and `plugins`."""
    epochs: int
    """Epochs that each run has finished."""
    accuracy_last: Spread | None
    accuracy_best: Spread | None
    seconds: Spread | None
    firing_rate: Spread | None
    joule: Spread | None
    accuracy_by_epoch: list[Point]


@dataclass(frozen=True)
class Comparison:
    """The table of a comparison."""

    rows: list[Group]
    differing_settings: dict[str, list[Any]]
    """The settings that differ between rows, with a value for every row."""
    simulated: bool
    """Whether any results are on simulated recordings."""


def compare(paths: Sequence[Path | str]) -> Comparison:
    """Compare the runs in these folders and below them, in this order."""
    runs = {run.folder.resolve(): run for path in paths for run in _runs(Path(path))}
    groups: dict[tuple[Any, ...], list[Run]] = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    for run in runs.values():
        same = (*_common(run).items(), ("epochs done", _epochs(run.rows())))
        seen[*same, run.recipe.seed] += 1
        groups.setdefault((*same, seen[*same, run.recipe.seed]), []).append(run)  # a row has every seed only once
    rows = [_group(sorted(found, key=lambda run: run.recipe.seed)) for found in groups.values()]
    names = rows[0].settings
    values = {name: [row.settings[name] for row in rows] for name in names}
    differing = {name: found for name, found in values.items() if any(value != found[0] for value in found)}
    return Comparison(rows, differing, any(data_of(run).simulated for run in runs.values()))


def _runs(path: Path) -> list[Run]:
    if str(path) in shipped.names():
        path = shipped.find(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give the folders of runs, or a folder that holds them")
    found = list(_below(path))
    if not found:
        raise ValueError(f"no run in {path}: neither it nor a folder below it has a recipe.json")
    return found


def _below(folder: Path) -> Iterable[Run]:
    if (folder / "recipe.json").exists():
        yield Run(folder)
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            yield from _below(path)


def _common(run: Run) -> dict[str, Any]:
    """Return what two runs must share to be in one row."""
    settings = {key: value for key, value in asdict(run.recipe).items() if key != "seed"}
    recorded = run.environment.get("record", run.environment)  # earlier versions wrote it without this key
    if not isinstance(recorded, dict) or not isinstance(recorded.get("device", ""), str):
        raise ValueError(f"{run.folder / 'environment.json'} does not name the device of the run; restore it")
    return {
        "recipe": settings.pop("name"),
        **settings,
        "precision": run.precision,
        "start": "random weights" if run.start is None else f"{run.start['from']} ({run.start['sha256'][:8]})",
        "device": recorded.get("device") or NOT_KNOWN,
        "data_content": run.data.fingerprint[:8] or NOT_KNOWN,
        "plugins": ", ".join(checksum[:8] for checksum in origins.checksums(run.folder)) or "none",
    }


def _epochs(rows: list[Row]) -> int:
    return rows[-1]["epoch"] if rows else 0


def _group(runs: list[Run]) -> Group:
    sizes = Sizes.of(runs[0])
    members = [_member(run, sizes) for run in runs]
    tested: dict[int, list[float]] = {}
    for run in runs:
        for row in run.rows():
            if "test_accuracy" in row:
                tested.setdefault(row["epoch"], []).append(row["test_accuracy"])
    return Group(
        name=_name([run.folder for run in runs]),
        runs=members,
        settings=_common(runs[0]),
        epochs=_epochs(runs[0].rows()),
        accuracy_last=Spread.of_known(m.accuracy_last for m in members),
        accuracy_best=Spread.of_known(m.accuracy_best for m in members),
        seconds=Spread.of_known(m.seconds for m in members),
        firing_rate=Spread.of_known(m.firing_rate for m in members),
        joule=Spread.of_known(m.joule for m in members),
        accuracy_by_epoch=[Point(epoch, Spread.of(values)) for epoch, values in sorted(tested.items())],
    )


def _name(folders: list[Path]) -> str:
    parents = {folder.parent for folder in folders}
    if len(folders) > 1 and len(parents) == 1 and all(folder.name.startswith("seed-") for folder in folders):
        return str(parents.pop())
    return ", ".join(map(str, folders))


def _member(run: Run, sizes: "Sizes") -> Member:
    rows = run.rows()
    tested = [row for row in rows if "test_accuracy" in row]
    last, best = (tested[-1], max(tested, key=lambda row: row["test_accuracy"])) if tested else ({}, {})
    rates = {node_name(path): rate for path, rate in last.get("firing_rates", {}).items()}
    inputs = last.get("input_rates")
    costs = sizes.costs(rates, run.recipe.timesteps, inputs)
    return Member(
        folder=str(run.folder),
        seed=run.recipe.seed,
        accuracy_last=last.get("test_accuracy"),
        accuracy_best=best.get("test_accuracy"),
        best_epoch=best.get("epoch"),
        seconds=rows[-1].get("elapsed") if rows else None,
        firing_rate=costs["firing_rate"],
        joule=costs["joule"],
        not_known=sizes.reason or (NO_INPUTS if sizes.recordings and rates and not inputs else None),
    )


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network that turn its firing rates into a mean rate and an energy."""

    neurons: dict[str, int]
    reached: FanOut | None = None
    reason: str | None = None
    recordings: bool = False
    """Whether the energy depends on how much of the input is 0 or 1."""

    @classmethod
    def of(cls, run: Run) -> "Sizes":
        """Return the sizes of the network of a run; none if it cannot be built."""
        shape = run.data.shape
        try:
            with torch.device("meta"):
                network = network_for(run.recipe, run.data, run.parts)
        except (ValueError, RuntimeError) as error:
            return cls({}, None, f"rate and energy unknown ({first_line(error)})")
        if any(isinstance(soma, ReluSoma | NeuNorm) for soma in somas(network).values()):
            return cls({}, None, "no rate or energy, because the outputs of its layers are not spikes")
        try:
            reached = fan_out(_folded(run, network), shape)
        except (ValueError, RuntimeError) as error:
            known = _neurons(network, shape)
            return cls(known, None, f"{'energy' if known else 'rate and energy'} unknown ({first_line(error)})")
        return cls(reached.neurons, reached, recordings=bool(data_of(run).timesteps))

    def costs(
        self, rates: dict[str, float], timesteps: int, inputs: dict[str, float] | None = None
    ) -> dict[str, float | None]:
        """Return the mean spikes per neuron and timestep, and the operations and energy of one inference.

        Of recordings, `inputs` must be known (see `FanOut.operations`).
        """
        known, neurons = self.neurons.keys() == rates.keys(), sum(self.neurons.values())
        spikes = sum(rates[name] * n for name, n in self.neurons.items()) if known else 0.0
        reached = self.reached if known and (inputs or not self.recordings) else None
        additions, multiplications = reached.operations(rates, timesteps, inputs) if reached else (None, None)
        return {
            "firing_rate": spikes / neurons if known and neurons else None,
            "additions": additions,
            "multiplications": multiplications,
            "joule": reached.joule(rates, timesteps, inputs) if reached else None,
        }


def _folded(run: Run, network: nn.Module) -> Network:
    """Return the folded network, without allocating it unless folding reads its values, such as a learnt decay."""
    try:
        return fold(network)
    except RuntimeError:
        return fold(network_for(run.recipe, run.data, run.parts)).to("meta")


def _neurons(network: nn.Module, shape: tuple[int, ...]) -> dict[str, int]:
    """Return the neurons per soma of a network that cannot be folded; none if it cannot run on meta tensors either."""
    try:
        return {node_name(name): n for name, n in neurons(network, shape).items()}
    except (ValueError, RuntimeError):
        return {}


def data_of(run: Run) -> DataInfo:
    """Return the record of a run's data. That of an earlier version has no fingerprint and marks no recordings."""
    loader = plugins.dataset.parts.get(run.recipe.data)
    expected = EXPECTED.get(loader) if loader else None
    return run.data if run.data.fingerprint or expected is None else expected
