"""The folder of a run: recipe, data, environment, plugins, start, metrics, checkpoints. Text and safetensors."""

import os
import re
import shutil
import warnings
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase.analysis.variants import VARIANTS
from rheobase.data import DataInfo, Dataset, load
from rheobase.data.holdout import hold_out
from rheobase.deploy import shipped
from rheobase.files import atomic_write, finite_or_null, parse_json, read_plain, strict_json, write_json
from rheobase.models import build
from rheobase.nn import Soma
from rheobase.plugins import Part
from rheobase.recipes import Recipe
from rheobase.recipes.settings import as_text, differences
from rheobase.train import checkpoint, origins
from rheobase.train.folders import BEGINNING, clear, refuse_used
from rheobase.train.parts import Parts
from rheobase.train.record import write_result
from rheobase.train.step import for_device

START = "start.json"
UNTIL = "data-until-{}.json"  # the earlier data of a run that was resumed on other data, up to a step

Row = dict[str, Any]  # the metrics of one epoch
MEASURED = ("loss", "train_accuracy", "test_loss", "test_accuracy", "elapsed")
SHOWN = 4  # settings in the sentence about another recipe
# Settings of the neuron that are passed on only if they differ from the paper's, as users' parts need not know them.
CHOICES = ("surrogate", "reset", "reset_gradient", "learn_decay", "levels")
PLACE = "place.json"  # paths on this machine; they go into no result and no exported file


class Run:
    """The folder of a run. Parts that its recipe names may be `given`, by setting."""

    def __init__(self, folder: Path | str, **given: Any) -> None:
        self.folder = folder = Path(folder)
        self.given = given
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.best = folder / "best"
        """Folder of the best epoch, if the run keeps it."""
        self.interrupted = 0
        """A signal that came in the last epoch, too late to stop the run; 0: none."""

    def __str__(self) -> str:
        """Return the folder, or the name of a network that comes with the package, for messages."""
        return self.folder.name if self.folder.parent == shipped.FOLDER else str(self.folder)

    @classmethod
    def create(
        cls,
        folder: Path,
        recipe: Recipe,
        info: DataInfo,
        device: torch.device,
        *,
        start: Row | None = None,
        weights: checkpoint.Tensors | None = None,
        keep_best: bool = False,
        part_bytes: int | None = None,
        processes: int = 1,
        **given: Any,
    ) -> "Run":
        """Create a run in `folder`. The caller holds its lock.

        A run that starts from another has a record of it, `start`, and a checkpoint 0 with the `weights`.
        """
        parts = Parts.of(recipe, **given)
        try:
            refuse_used(folder)
            clear(folder)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / BEGINNING).touch()
            how: dict[str, Any] = {"device": device, "seed": recipe.seed, "data": info.fingerprint}
            computing = {"processes": processes, "precision": for_device(recipe, device).precision}
            write_result(folder / "environment.json", computing, **how)
            write_json(folder / "data.json", info.as_dict())
            origins.keep(folder, recipe, parts, given)
            if start is not None and weights is not None:
                write_json(folder / START, start)
                checkpoint.save(folder / "checkpoints", 0, {"weights": weights}, {}, part_bytes=part_bytes)
            if keep_best:
                (folder / "best").mkdir()
            write_json(folder / "recipe.json", asdict(recipe))  # last, as this file makes the folder a run
        except OSError as error:
            raise OSError(
                f"cannot write to {folder}: {error.strerror or error}; choose another folder with --out"
            ) from error
        return cls(folder, **given)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return Recipe.of(self.read("recipe.json"), self.folder / "recipe.json")

    @cached_property
    def data(self) -> DataInfo:
        """The record of the data that the run was trained on."""
        return DataInfo.of(self.read("data.json"), self.folder / "data.json")

    @property
    def environment(self) -> Row:
        """How the run was made; empty if that was not recorded."""
        return self.read("environment.json") if (self.folder / "environment.json").exists() else {}

    @property
    def precision(self) -> str:
        """The precision in which the run computed when it began (see `step.for_device`)."""
        return str(self.environment.get("precision", self.recipe.precision))

    @property
    def start(self) -> Row | None:
        """The record of where the run started from; None if it started with random weights."""
        if not (self.folder / START).exists():
            return None
        start = self.read(START)
        if not all(isinstance(start.get(name), str) for name in ("from", "sha256")):
            raise ValueError(f"{self.folder / START} does not say where the run started from; restore it")
        return start

    def trained(self) -> checkpoint.Checkpoint:
        """Return the newest checkpoint."""
        saved = checkpoint.latest(self.checkpoints)
        if saved is None:
            raise ValueError(f"{self} has no checkpoint: no epoch was finished, or weights were not kept")
        if saved.step == 0:
            warnings.warn(f"{self} is not trained yet: these are the weights that it starts from", stacklevel=2)
        return saved

    @cached_property
    def parts(self) -> Parts:
        """The parts that the recipe names. Plugins that define them must be loaded."""
        return origins.find(self.folder, self.recipe, self.given)

    def remember(self, **places: Path | None) -> None:
        """Keep the folder of the `data`, for later commands without --data, and the folder of the `start`."""
        known = self.read(PLACE) if (self.folder / PLACE).exists() else {}
        new = {what: str(path.absolute()) for what, path in places.items() if path is not None}
        if known | new:
            write_json(self.folder / PLACE, known | new)

    def place(self, what: str) -> Path | None:
        """Return where the `data` are or the `start` was; None if unknown. For the best epoch, ask its run."""
        folder = self.folder if self.folder.name != "best" or (self.folder / PLACE).exists() else self.folder.parent
        if not (folder / PLACE).exists():
            return None
        known = Run(folder).read(PLACE).get(what)
        if known is not None and not isinstance(known, str):
            raise ValueError(f"{folder / PLACE} does not name a folder; remove the file and give the data with --data")
        return None if known is None else Path(known)

    def data_path(self, path: Path | None) -> Path | None:
        """Return `path`, by default the folder where the data were; None if no folder was ever given."""
        known = self.place("data") if path is None else path
        if path is None and known is not None and not known.exists():
            raise ValueError(f"the data of {self.folder} are no longer in {known}; give their folder with --data")
        return known

    def open_data(self, path: Path | None, *, resume: bool = False, download: bool = False) -> Dataset:
        """Return the data that the run was trained on, from `path` or their earlier folder; see `open_data`."""
        return open_data(
            self.recipe,
            self.data,
            self.data_path(path),
            self,
            loader=self.parts.data,
            resume=resume,
            download=download,
        )

    def network(self) -> nn.Module:
        """Return the network of this run, without its trained weights."""
        return channels_last(network_for(self.recipe, self.data, self.parts))

    def change_data(self, data: DataInfo, step: int) -> None:
        """Record that the run trains on `data` from `step` on. If they differ, keep the record of the earlier data."""
        if self.data.same_content(data):
            return
        write_json(self.folder / UNTIL.format(f"{step:08d}"), self.data.as_dict())
        write_json(self.folder / "data.json", data.as_dict())
        del self.data  # the next access reads the file again

    def data_files(self, step: int) -> tuple[Path, list[Path]]:
        """Return the file of the data at `step`, and the files of all earlier data."""
        named = {path: re.fullmatch(UNTIL.format(r"(\d+)"), path.name) for path in self.folder.iterdir()}
        until = {path: int(found[1]) for path, found in named.items() if found}
        earlier = sorted((path for path, last in until.items() if last < step), key=until.__getitem__)
        later = [path for path in until if path not in earlier]
        return min(later, key=until.__getitem__, default=self.folder / "data.json"), earlier

    @property
    def beginning(self) -> bool:
        """Whether the run has never had a checkpoint, rather than lost them all."""
        return (self.folder / BEGINNING).exists()

    def begun(self) -> None:
        """Record that the run has a checkpoint now."""
        (self.folder / BEGINNING).unlink(missing_ok=True)

    def refuse_other(self, recipe: Recipe) -> None:
        """Raise a ValueError if the run has another recipe."""
        found = differences(self.recipe, recipe)
        if found:
            told = [f"{k} is {as_text(own)} there and {as_text(new)} here" for k, (own, new) in found.items()]
            more = [f"and {len(told) - SHOWN} more differ"] if len(told) > SHOWN else []
            raise ValueError(
                f"{self.folder} holds a run of another recipe: {', '.join([*told[:SHOWN], *more])}; "
                "continue with its own settings, or choose another folder"
            )

    def discard_if_empty(self) -> None:
        """Remove the run if it failed before its first epoch, so that it does not block the next attempt."""
        if self.folder.exists() and not self.metrics.exists() and not checkpoint.newest_step(self.checkpoints):
            (self.folder / BEGINNING).touch()
            clear(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)

    def append(self, row: Row) -> None:
        """Append the row of an epoch to the metrics."""
        try:
            with open(self.metrics, "a", opener=_without_links) as file:
                file.write(self._line(row))
        except OSError as error:
            what = f"cannot write to {self.metrics}: {error.strerror}"
            raise OSError(f"{what}{checkpoint.intact(self.checkpoints)}") from error

    def rows(self) -> list[Row]:
        """Return the metrics, one row per finished epoch."""
        if not self.metrics.exists():
            return []
        try:
            lines = read_plain(self.metrics).decode().splitlines(keepends=True)
            rows = [parse_json(line) for line in lines if line.endswith("\n")]  # a kill can leave half a line
        except ValueError:
            raise ValueError(f"{self.metrics} has a line that is not JSON; remove it") from None
        if not all(_is_row(row) for row in rows):
            raise ValueError(f"{self.metrics} has a line that is not the record of an epoch; remove it")
        return rows

    def keep_rows(self, epochs: int) -> None:
        """Remove the metrics after the first `epochs`, as those epochs will run again."""
        self.write_rows([row for row in self.rows() if row["epoch"] <= epochs])

    def write_rows(self, rows: list[Row]) -> None:
        """Replace the metrics by these rows."""
        with atomic_write(self.metrics) as part:
            part.write_text("".join(map(self._line, rows)))

    def _line(self, row: Row) -> str:
        """Return a row as a line of metrics.jsonl. Numbers that are not finite become null."""
        return strict_json(finite_or_null(row), self.metrics.name) + "\n"

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file of the run."""
        path = self.folder / name
        try:
            content = parse_json(read_plain(path))
            if not isinstance(content, dict):
                raise ValueError
            return content
        except OSError:
            raise ValueError(f"{self.folder} is not the folder of a run: it has no {name} to read") from None
        except ValueError:
            raise ValueError(f"{path} is not valid JSON; restore it or start the run again") from None


def _is_row(row: Any) -> bool:
    """Return whether this is the record of an epoch: its number, its last step, and what was measured."""
    if not isinstance(row, dict) or not isinstance(row.get("firing_rates", {}), dict):
        return False
    counts = [row.get("epoch"), row.get("step", 0)]
    measured = [row[name] for name in MEASURED if name in row] + [*row.get("firing_rates", {}).values()]
    return all(type(n) is int and 0 <= n < 2**53 for n in counts) and all(
        type(value) in (int, float) and abs(value) < 1e300 for value in measured
    )


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def network_for(recipe: Recipe, data: DataInfo, parts: Parts | None = None) -> nn.Module:
    """Return the untrained network of a recipe for these data."""
    parts = parts or Parts.of(recipe)
    soma = parts.neuron if recipe.normalisation == "tdbn" else VARIANTS[recipe.normalisation][1]
    ours = soma is Soma  # the default of every network, so only other somas are passed
    return build(
        parts.network,
        num_classes=len(data.classes),
        in_channels=data.channels,
        image_size=data.size,
        decay=recipe.decay,
        v_th=recipe.v_th,
        width=recipe.width,
        memory=recipe.memory,
        **{name: getattr(recipe, name) for name in CHOICES if getattr(recipe, name) != getattr(Recipe, name)},
        **({} if ours else {"soma": soma}),
    )


def channels_last(network: nn.Module) -> nn.Module:
    """Return the network in the memory order that convolutions prefer."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load_data(
    recipe: Recipe, path: Path | None, loader: Dataset | Part | None = None, *, download: bool = False
) -> Dataset:
    """Return the dataset of a recipe, or of `loader` in its place, from the files in `path`."""
    if isinstance(loader, Dataset):
        found = loader
    else:
        options: dict[str, Any] = {"size": recipe.image_size, "timesteps": recipe.timesteps, **recipe.slicing()}
        found = load(loader or recipe.data, path, download=download, **options)
    return hold_out(found, recipe.holdout) if recipe.holdout else found


def open_data(
    recipe: Recipe,
    record: DataInfo,
    path: Path | None,
    owner: object,
    *,
    loader: Dataset | Part | None = None,
    resume: bool = False,
    download: bool = False,
) -> Dataset:
    """Return the data for the network of `owner`, which was trained on what `record` says, normalised as then.

    Data with other classes or shapes are refused. Other content gives a warning, or an error if the run is to `resume`.
    For a file in the folder of a run, the data are by default where those of the run are.
    """
    if path is None and isinstance(owner, Path) and (owner.parent / PLACE).exists():
        path = Run(owner.parent).data_path(None)
    found = load_data(recipe, path, loader, download=download)
    record.refuse_others(found.info, owner)
    if not record.same_content(found.info):
        what = f"these data are not the ones that {owner} was trained on: labels or content differ"
        if resume:
            raise ValueError(f"{what}; continue it with its own data, or add --new-data to continue with these")
        warnings.warn(what, stacklevel=2)
    return replace(found, info=replace(found.info, mean=record.mean, std=record.std))


def _check_size(run: Run, values: int) -> None:
    """Raise a ValueError if the network of the run would be far larger than its saved `values`, before it is built."""
    try:
        with torch.device("meta"):
            made = network_for(run.recipe, run.data, run.parts)
    except Exception:  # a user's network that reads values while it is built
        return
    if sum(p.numel() for p in made.state_dict().values()) > 2 * values:
        raise ValueError(f"the weights in {run.checkpoints} do not fit the network in recipe.json")


def load_network(run: Run) -> nn.Module:
    """Return the trained network of a run, ready for inference."""
    _ = run.recipe  # first, to report a folder that is not a run
    weights = run.trained().weights
    _check_size(run, sum(w.numel() for w in weights.values()))
    network = run.network()
    first, _ = next(network.named_parameters())
    try:
        network.to(weights[first].dtype).load_state_dict(weights)
    except (KeyError, RuntimeError, TypeError):
        raise ValueError(f"the weights in {run.checkpoints} do not fit the network in recipe.json") from None
    except ValueError as error:
        raise ValueError(f"{run.checkpoints}: {error}") from None
    return network.eval()
