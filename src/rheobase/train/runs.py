"""The folder of a run: recipe, data description, environment, metrics, checkpoints. Plain text and safetensors."""

import json
import platform
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from rheobase.data import DataInfo, Dataset, load
from rheobase.files import replaced
from rheobase.models import SpikingNet, build
from rheobase.recipes import Recipe
from rheobase.train import checkpoint

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
        with torch.device("meta"):  # a network that cannot be built must not leave a folder behind
            network_for(recipe, dataset.info)
        try:
            folder = folder or _own_folder(recipe.name)
            folder.mkdir(parents=True, exist_ok=True)
            _write_json(folder / "environment.json", environment(device))
            _write_json(folder / "data.json", dataset.info.as_dict())
            _write_json(folder / "recipe.json", asdict(recipe))  # the last one: it makes the folder a run
        except OSError as error:
            where = folder or Path("runs")
            raise OSError(f"cannot write to {where}: {error.strerror}; choose another folder with --out") from error
        return cls(folder)

    def recipe(self) -> Recipe:
        return Recipe.of(self.read("recipe.json"), self.folder / "recipe.json")

    def data(self) -> DataInfo:
        """What it was trained on."""
        return DataInfo.of(self.read("data.json"), self.folder / "data.json")

    def open_data(self, path: Path | None) -> Dataset:
        """The data that it was trained on, in `path`; see `open_data`."""
        return open_data(self.recipe(), self.data(), path, self.folder)

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
                file.write(json.dumps(row) + "\n")
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
        _write(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

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


def network_for(recipe: Recipe, data: DataInfo) -> SpikingNet:
    return build(
        recipe.network,
        num_classes=len(data.classes),
        in_channels=data.channels,
        image_size=data.size,
        decay=recipe.decay,
        v_th=recipe.v_th,
        width=recipe.width,
        memory=recipe.memory,
    )


def load_data(recipe: Recipe, path: Path | None, *, download: bool = False) -> Dataset:
    """The data set of a recipe, from the files in `path`."""
    return load(recipe.data, path, size=recipe.image_size, timesteps=recipe.timesteps, download=download)


def open_data(
    recipe: Recipe, record: DataInfo, path: Path | None, owner: object, *, resume: bool = False, download: bool = False
) -> Dataset:
    """The data for a network of `owner` that was trained on what `record` says; its normalisation decides.

    Data of other classes or shapes are refused. Other content is worth a warning, but must not continue a training.
    """
    found = load_data(recipe, path, download=download)
    record.refuse_others(found.info, owner)
    if not record.same_content(found.info):
        what = f"these data are not the ones that {owner} was trained on: labels or content differ"
        if resume:
            raise ValueError(f"{what}; continue it with its own data")
        warnings.warn(what, stacklevel=2)
    return replace(found, info=replace(found.info, mean=record.mean, std=record.std))


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


def environment(device: torch.device) -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for name in ("rheobase", "torch", "numpy", "triton", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "packages": packages,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "git": _git_state(),
    }


def _git_state() -> dict[str, Any] | None:
    """Commit of the source this package runs from, and whether it was changed; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _write_json(path: Path, content: Any) -> None:
    _write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    with replaced(path) as part:
        part.write_text(text)
