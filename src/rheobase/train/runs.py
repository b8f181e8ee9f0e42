"""The folder of a run: recipe, data description, environment, metrics, checkpoints. Plain text and safetensors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import torch

from rheobase.data import SIMULATED, Dataset, load
from rheobase.files import atomic_write, finite_or_null, strict_json, write_json
from rheobase.models import SpikingNet, build
from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.record import write_result

Row = dict[str, Any]  # the metrics of one epoch


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"

    @classmethod
    def create(cls, folder: Path | None, recipe: Recipe, dataset: Dataset, device: torch.device) -> "Run":
        """A new run in `folder`, or else in the first free `runs/<recipe>-<number>`."""
        if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} is not an empty folder; choose another one, or resume the run in it")
        description = {
            "name": dataset.name,
            "simulated": dataset.name in SIMULATED,
            "classes": dataset.classes,
            "channels": dataset.channels,
            "size": dataset.size,
            "mean": dataset.mean,
            "std": dataset.std,
        }
        with torch.device("meta"):  # a network that cannot be built must not leave a folder behind
            network_for(recipe, description)
        try:
            folder = folder or _own_folder(recipe.name)
            folder.mkdir(parents=True, exist_ok=True)
            write_result(folder / "environment.json", {}, device=device, seed=recipe.seed)
            write_json(folder / "data.json", description)
            write_json(folder / "recipe.json", asdict(recipe))  # the last one: it makes the folder a run
        except OSError as error:
            where = folder or Path("runs")
            raise OSError(f"cannot write to {where}: {error.strerror}; choose another folder with --out") from error
        return cls(folder)

    def recipe(self) -> Recipe:
        return Recipe.of(self.read("recipe.json"), self.folder / "recipe.json")

    def data(self) -> dict[str, Any]:
        """What it was trained on."""
        found = self.read("data.json")
        for key in ("name", "classes", "channels", "size", "mean", "std"):
            if key not in found:
                raise ValueError(f"{self.folder / 'data.json'} has no {key}; restore it or start the run again")
        return found

    def network(self) -> SpikingNet:
        """The network of this run, without its weights, in the memory order that convolutions prefer."""
        network = network_for(self.recipe(), self.data())
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """For one process at a time: the system releases it at the end of the process, however that comes."""
        with open(self.folder / ".lock", "w") as file:
            try:
                import fcntl

                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise ValueError(f"{self.folder} is being trained by another process; wait for its end") from None
            except (ImportError, OSError):
                pass  # a system or a file system without locks
            yield

    def append(self, row: Row) -> None:
        try:
            with open(self.metrics, "a") as file:
                file.write(self._line(row))
        except OSError as error:
            raise OSError(f"cannot write to {self.metrics}: {error.strerror}; the checkpoints are intact") from error

    def rows(self) -> list[Row]:
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text().splitlines(keepends=True)
        try:
            return [json.loads(line) for line in lines if line.endswith("\n")]  # a kill can leave half a line
        except ValueError:
            raise ValueError(f"{self.metrics} has a line that is not JSON; remove it") from None

    def keep_rows(self, epochs: int) -> None:
        """Forget metrics of epochs after the first `epochs`: they will be run again."""
        rows = [row for row in self.rows() if row["epoch"] <= epochs]
        with atomic_write(self.metrics) as part:
            part.write_text("".join(map(self._line, rows)))

    def _line(self, row: Row) -> str:
        """A norm of gradients that overflowed is null: the step was left out."""
        return strict_json(finite_or_null(row), self.metrics.name) + "\n"

    def read(self, name: str) -> dict[str, Any]:
        """The content of a JSON file of the run."""
        path = self.folder / name
        try:
            content = json.loads(path.read_text())
            if not isinstance(content, dict):
                raise ValueError
            return content
        except OSError:
            raise ValueError(f"{self.folder} is not the folder of a run: it has no {name} to read") from None
        except ValueError:
            raise ValueError(f"{path} is not valid JSON; restore it or start the run again") from None


def _own_folder(name: str) -> Path:
    """The first free runs/<name>-<number>, made here: another run may look for one at the same moment."""
    for folder in (Path("runs") / f"{name}-{number}" for number in count(1)):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("numbers do not end")


def network_for(recipe: Recipe, data: dict[str, Any]) -> SpikingNet:
    return build(
        recipe.network,
        num_classes=len(data["classes"]),
        in_channels=data["channels"],
        image_size=data["size"],
        decay=recipe.decay,
        v_th=recipe.v_th,
        width=recipe.width,
        memory=recipe.memory,
    )


def load_data(recipe: Recipe, path: Path | None, *, download: bool = False) -> Dataset:
    """The data set of a recipe, from the files in `path`."""
    return load(recipe.data, path, size=recipe.image_size, timesteps=recipe.timesteps, download=download)


def load_network(folder: Path) -> SpikingNet:
    """The trained network of the run in `folder`, ready for inference."""
    run = Run(folder)
    network = run.network()
    saved = checkpoint.latest(run.checkpoints)
    if saved is None:
        raise ValueError(f"{folder} has no checkpoint: no epoch was finished, or weights were not kept")
    weights = saved.tensors["weights"]
    first, _ = next(network.named_parameters())
    try:
        network.to(weights[first].dtype).load_state_dict(weights)
    except (KeyError, RuntimeError):
        raise ValueError(f"the weights in {run.checkpoints} are not of the network in its recipe.json") from None
    return network.eval()
