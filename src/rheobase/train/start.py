"""Start a run from a trained network: take its weights by name, and a new head if the old one does not fit."""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from rheobase.convert.unfold import unfold
from rheobase.data import DataInfo, Dataset
from rheobase.data.feed import Feed
from rheobase.deploy import shipped
from rheobase.deploy.network import Network
from rheobase.recipes import Recipe
from rheobase.train.checkpoint import Checkpoint, Tensors
from rheobase.train.freezing import head_of
from rheobase.train.record import checksum
from rheobase.train.runs import Run

RELUS = ("relu", "qcfs")
BATCHES = 12  # from which tdBN gets its statistics, if the run starts from a converted network


@dataclass(frozen=True)
class Start:
    """The trained network of a run that another run starts from."""

    run: Run
    data: DataInfo
    saved: Checkpoint

    @classmethod
    def of(cls, source: Run | Path | str) -> "Start":
        """Open a run, its folder, or the network of this name that comes with the package."""
        run = source if isinstance(source, Run) else Run(shipped.find(Path(source)))
        return cls(run, run.data, run.trained())

    def place(self) -> Path | None:
        """Return the folder of the run; None for a network of the package, which is found by name."""
        return None if self.run.folder.parent == shipped.FOLDER else self.run.folder

    def sha256(self) -> str:
        """Return the checksum of the weights."""
        return self.saved.sha256()

    def load_into(self, network: nn.Module, recipe: Recipe, feed: Feed) -> dict[str, Any]:
        """Load the weights that fit into `network`, and return a record of this.

        All weights must fit, except in the head: from its first tensor that does not fit, the head stays as it is.
        The weights of a ReLU network are refused: they would fit a spiking network, but mean something else there.
        """
        if self.run.recipe.neuron in RELUS and recipe.neuron not in RELUS:
            raise ValueError(
                f"network '{recipe.network}' cannot start from {self.run}: its neurons do not spike "
                f"(neuron={self.run.recipe.neuron}); convert it with `rheobase convert`, and start from that file"
            )
        own, given, head = network.state_dict(), self.saved.weights, head_of(network)
        prefix = f"{head}." if head else ""  # a network may be a single layer
        in_head = [name for name in own if name.startswith(prefix)]
        weights = _tensors(own)  # somas check their settings themselves when they are loaded
        misfits = [name for name in weights if name not in given or given[name].shape != own[name].shape]
        first = next((i for i, name in enumerate(in_head) if name in misfits), len(in_head))
        new = in_head[first:]
        foreign = sorted(name for name in given if name not in own and not name.startswith(prefix))
        for name in [name for name in misfits if name not in new] + foreign:
            _check_neurons(f"network '{recipe.network}' cannot start from {self.run}", self.run.recipe, recipe)
            there, here = (f"{list(t[name].shape)}" if name in t else "missing" for t in (given, own))
            raise ValueError(
                f"network '{recipe.network}' cannot start from {self.run}: {name} is {there} there and {here} here, "
                "and only the head may differ; start from a run of the same network on such images"
            )
        try:
            network.load_state_dict(own | {name: given[name] for name in own if name in given and name not in new})
        except ValueError as error:  # from a soma with other settings
            raise ValueError(f"network '{recipe.network}' cannot start from {self.run}: {error} (--set)") from None
        return {
            "from": str(self.run) if self.place() is None else name_of(self.run.folder),
            "recipe": self.run.recipe.name,
            "step": self.saved.step,
            "sha256": self.sha256(),
            "tensors": len(weights),
            "new": _tensors({name: own[name] for name in new}),
        }


@dataclass(frozen=True)
class ConvertedStart:
    """The file of a converted network that a run starts from: hybrid training (Rathi et al. 2020)."""

    path: Path
    network: Network
    recipe: Recipe
    data: DataInfo

    @classmethod
    def of(cls, path: Path) -> "ConvertedStart":
        """Open the file of a converted network."""
        from rheobase.deploy.formats import native  # here, as it imports the other formats too

        if path.suffix != native.SUFFIX:
            raise ValueError(
                f"{path} is not a file from `rheobase convert`, whose name ends in {native.SUFFIX}; "
                "give one, or the folder of a run"
            )
        network = native.load(path)
        if "converted" not in network.info:
            raise ValueError(f"{path} is a deployed network, which cannot be trained; start from its run")
        recipe, data = network.info.get("recipe"), network.info.get("data")
        if not isinstance(recipe, dict) or not isinstance(data, dict):
            raise ValueError(f"{path} does not say what it was trained on; convert it again from its run")
        return cls(path, network, Recipe.of(recipe, path), DataInfo.of(data, path))

    def place(self) -> Path | None:
        """Return the file."""
        return self.path

    def sha256(self) -> str:
        """Return the checksum of the file."""
        return checksum([self.path])

    def load_into(self, network: nn.Module, recipe: Recipe, feed: Feed) -> dict[str, Any]:
        """Give `network` weights with which it fires like the converted one, and return a record of this.

        Its tdBN gets its statistics from training images.
        """
        what = f"network '{recipe.network}' cannot start from {self.path}"
        _check_neurons(what, self.recipe, recipe, "decay", "reset")
        network.to(feed.device)
        whole = max(1, min(BATCHES, feed.steps - 1))  # the last batch may be smaller
        images = (x for x, *_ in islice(feed.training(0), whole))
        try:
            unfold(self.network.to(feed.device, feed.dtype), network, images, recipe.timesteps)
        except ValueError as error:
            raise ValueError(f"{what}: {error}; use the network and the data that it was converted from") from None
        return {
            "from": name_of(self.path),
            "recipe": self.recipe.name,
            "step": 0,
            "sha256": self.sha256(),
            "tensors": len(_tensors(network.state_dict())),
            "new": [],
        }


def start_of(source: Run | Path | str) -> Start | ConvertedStart:
    """Open a run, its folder, the network of this name that comes with the package, or the file of a converted one."""
    if not isinstance(source, Run) and Path(source).is_file():
        return ConvertedStart.of(Path(source))
    return Start.of(source)


def normalising(start: Start | ConvertedStart, dataset: Dataset) -> Dataset:
    """Return the dataset with the normalisation that the network was trained with, if it has the same kind of input."""
    own, info = start.data, dataset.info
    if own.channels != info.channels or bool(own.timesteps) != bool(info.timesteps):
        return dataset
    return replace(dataset, info=replace(info, mean=own.mean, std=own.std))


def name_of(folder: Path) -> str:
    """Return the name of a start for the record of a run, without folders of this machine."""
    return folder.name if folder.is_absolute() else str(folder)


def started_from(run: Run, source: str | None) -> bool:
    """Return whether the run started from the weights of `source`; None stands for random weights.

    Either their path or their checksum must agree: a start may have been moved, or trained further.
    """
    if run.start is None or source is None:
        return run.start is None and source is None
    try:
        start = start_of(source)
    except ValueError:  # it no longer exists, and is not needed
        return name_of(Path(source)) == run.start["from"]
    place = start.path if isinstance(start, ConvertedStart) else start.run.folder
    return run.place("start") == place.absolute() or start.sha256() == run.start["sha256"]


def _check_neurons(what: str, given: Recipe, own: Recipe, *others: str) -> None:
    """Raise a ValueError that begins with `what` if the neurons differ in what they learn or in the `others`."""
    for setting in ("neuron", *others, "normalisation", "learn_decay"):
        there, here = getattr(given, setting), getattr(own, setting)
        if there != here:
            raise ValueError(f"{what}: its neurons have {setting}={there}, not {here}; add --set {setting}={there}")


def _tensors(weights: Tensors) -> list[str]:
    """Return the names of all tensors, without the settings stored beside them."""
    return [name for name in weights if not name.endswith("_extra_state")]


def describe(record: dict[str, Any], classes: int) -> str:
    """Return one line about where a run starts, from its record."""
    total, new = record["tensors"], len(record["new"])
    head = f", new head for {classes} classes" if new else ""
    return f"starts from {record['from']}: {total - new} of {total} tensors{head}"
