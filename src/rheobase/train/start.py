"""Starting from a trained network: weights by name, a new head where it does not fit."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from rheobase.data import DataInfo, Dataset
from rheobase.deploy import shipped
from rheobase.recipes import Recipe
from rheobase.train.checkpoint import Checkpoint, Tensors
from rheobase.train.freezing import head_of
from rheobase.train.runs import Run


@dataclass(frozen=True)
class Start:
    """The trained network of a run that another run starts from."""

    run: Run
    data: DataInfo
    saved: Checkpoint

    @classmethod
    def of(cls, source: Run | Path | str) -> "Start":
        """A run, its folder, or the name of a network that comes with the package."""
        run = source if isinstance(source, Run) else Run(shipped.find(Path(source)))
        if run.folder.is_file():
            raise ValueError(f"{run.folder} is a deployed network, which cannot be trained; start from its run")
        return cls(run, run.data, run.trained())

    def place(self) -> Path | None:
        """Where the run is; None for one of the package, whose name says it."""
        return None if self.run.folder.parent == shipped.FOLDER else self.run.folder

    def normalising(self, dataset: Dataset) -> Dataset:
        """The data set, normalised as the network knows it: images as its images, recordings as its recordings."""
        own, info = self.data, dataset.info
        if own.channels != info.channels or bool(own.timesteps) != bool(info.timesteps):
            return dataset
        return replace(dataset, info=replace(info, mean=own.mean, std=own.std))

    def load_into(self, network: nn.Module, recipe: Recipe) -> dict[str, Any]:
        """Give `network` the weights that fit, and return the record of this.

        All of them must, but for the head: from its first tensor that does not fit on, it stays as it is.
        """
        own, given, head = network.state_dict(), self.saved.weights, head_of(network)
        prefix = f"{head}." if head else ""  # a network may be a single layer
        in_head = [name for name in own if name.startswith(prefix)]
        weights = _tensors(own)  # a soma judges its settings itself, when it gets them
        misfits = [name for name in weights if name not in given or given[name].shape != own[name].shape]
        first = next((i for i, name in enumerate(in_head) if name in misfits), len(in_head))
        new = in_head[first:]
        foreign = sorted(name for name in given if name not in own and not name.startswith(prefix))
        for name in [name for name in misfits if name not in new] + foreign:
            there, here = (f"{list(t[name].shape)}" if name in t else "missing" for t in (given, own))
            raise ValueError(
                f"network '{recipe.network}' cannot start from {self.run}: {name} is {there} there and {here} here, "
                "and only the head may differ; start from a run of the same network on such images"
            )
        try:
            network.load_state_dict(own | {name: given[name] for name in own if name in given and name not in new})
        except ValueError as error:  # of a soma with other settings
            raise ValueError(f"network '{recipe.network}' cannot start from {self.run}: {error} (--set)") from None
        return {
            "from": str(self.run) if self.place() is None else name_of(self.run.folder),
            "recipe": self.run.recipe.name,
            "step": self.saved.step,
            "sha256": self.saved.sha256(),
            "tensors": len(weights),
            "new": _tensors({name: own[name] for name in new}),
        }


def name_of(folder: Path) -> str:
    """As the record of a run names where it started: without the folders of this machine."""
    return folder.name if folder.is_absolute() else str(folder)


def started_from(run: Run, source: str | None) -> bool:
    """Whether the run began with the weights of `source`, or with random ones if that is None.

    It is told by where they were, or else by what they are: a start may be moved, or trained on.
    """
    if run.start is None or source is None:
        return run.start is None and source is None
    try:
        start = Start.of(source)
    except ValueError:  # it is gone, and no longer needed
        return name_of(Path(source)) == run.start["from"]
    return run.place("start") == start.run.folder.absolute() or start.saved.sha256() == run.start["sha256"]


def _tensors(weights: Tensors) -> list[str]:
    """The names, but for settings that travel with them."""
    return [name for name in weights if not name.endswith("_extra_state")]


def describe(record: dict[str, Any], classes: int) -> str:
    """One line about where a run starts, from its record."""
    total, new = record["tensors"], len(record["new"])
    head = f", new head for {classes} classes" if new else ""
    return f"starts from {record['from']}: {total - new} of {total} tensors{head}"
