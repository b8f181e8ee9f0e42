"""The folder of a run: recipe, data, environment, plugins, start, metrics, checkpoints. Text and safetensors."""

import os
import re
import shutil
import warnings
from dataclasses import asdict, fields, replace
from functools import cached_property
from itertools import count
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
from rheobase.train.claim import LOCK
from rheobase.train.parts import Parts
from rheobase.train.record import write_result

START = "start.json"
UNTIL = "data-until-{}.json"  # the data up to a step, where it went on with others

Row = dict[str, Any]  # the metrics of one epoch
BEGINNING = ".beginning"  # lies in the folder of a run until its first checkpoint
MEASURED = ("loss", "train_accuracy", "test_loss", "test_accuracy", "elapsed")
SHOWN = 4  # settings in the sentence about another recipe
# settings of the neuron that are handed over where they are not the paper's: parts of users need not know them
CHOICES = ("surrogate", "reset", "reset_gradient", "learn_decay", "levels")
PLACE = "place.json"  # of this machine, so it is for the run alone: no result and no exported file has it


class Run:
    """What is in the folder of a run. Parts that its recipe names may be `given`, under the names of its settings."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.folder, self.given = folder, given
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.best = folder / "best"
        """Of a run that keeps its best epoch: the folder of it."""
        self.interrupted = 0
        """The signal that came in its last epoch, too late to stop it; 0 for none."""

    def __str__(self) -> str:
        """As messages name it: the folder, or the name of a network that comes with the package."""
        return self.folder.name if self.folder.parent == shipped.FOLDER else str(self.folder)

    @classmethod
    def create(
        cls,
        folder: Path | None,
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
        """A new run in `folder`, or else in the first free `runs/<recipe>-<number>`; who trains it holds its lock.

        One that starts from another has a record of that, `start`, and a checkpoint 0 with the `weights`.
        """
        parts = Parts.of(recipe, **given)
        try:
            if folder is not None:
                refuse_used(folder)
                _clear(folder)
            folder = folder or own_folder(recipe.name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / BEGINNING).touch()
            how = {"device": device, "seed": recipe.seed, "data": info.fingerprint}
            write_result(folder / "environment.json", {"processes": processes}, **how)
            write_json(folder / "data.json", info.as_dict())
            origins.keep(folder, recipe, parts, given)
            if start is not None and weights is not None:
                write_json(folder / START, start)
                checkpoint.save(folder / "checkpoints", 0, {"weights": weights}, {}, part_bytes=part_bytes)
            if keep_best:
                (folder / "best").mkdir()
            write_json(folder / "recipe.json", asdict(recipe))  # the last one: it makes the folder a run
        except OSError as error:
            where = folder or Path("runs")
            raise OSError(
                f"cannot write to {where}: {error.strerror or error}; choose another folder with --out"
            ) from error
        return cls(folder, **given)

    @cached_property
    def recipe(self) -> Recipe:
        """Its settings."""
        return Recipe.of(self.read("recipe.json"), self.folder / "recipe.json")

    @cached_property
    def data(self) -> DataInfo:
        """What it was trained on."""
        return DataInfo.of(self.read("data.json"), self.folder / "data.json")

    @property
    def start(self) -> Row | None:
        """Where it started from; None for one that began with random weights."""
        if not (self.folder / START).exists():
            return None
        start = self.read(START)
        if not all(isinstance(start.get(name), str) for name in ("from", "sha256")):
            raise ValueError(f"{self.folder / START} does not say where the run started; restore it")
        return start

    def trained(self) -> checkpoint.Checkpoint:
        """Its newest checkpoint."""
        saved = checkpoint.latest(self.checkpoints)
        if saved is None:
            raise ValueError(f"{self} has no checkpoint: no epoch was finished, or weights were not kept")
        if saved.step == 0:
            warnings.warn(f"{self} was not trained yet: these are the weights that it starts from", stacklevel=2)
        return saved

    @cached_property
    def parts(self) -> Parts:
        """What its recipe names; a plugin that has them must have been loaded."""
        return origins.find(self.folder, self.recipe, self.given)

    def remember(self, **places: Path | None) -> None:
        """Keep where the `data` are, for commands that do not say it, and where the `start` was."""
        known = self.read(PLACE) if (self.folder / PLACE).exists() else {}
        new = {what: str(path.absolute()) for what, path in places.items() if path is not None}
        if known | new:
            write_json(self.folder / PLACE, known | new)

    def place(self, what: str) -> Path | None:
        """Where the `data` are, or the `start` was; None if that was never said. The best epoch knows it of its run."""
        folder = self.folder if self.folder.name != "best" or (self.folder / PLACE).exists() else self.folder.parent
        if not (folder / PLACE).exists():
            return None
        known = Run(folder).read(PLACE).get(what)
        if known is not None and not isinstance(known, str):
            raise ValueError(f"{folder / PLACE} does not name a folder; remove it, and give the data with --data")
        return None if known is None else Path(known)

    def data_path(self, path: Path | None) -> Path | None:
        """Where the data are: `path`, or else where they were; None for those that were never given one."""
        known = self.place("data") if path is None else path
        if path is None and known is not None and not known.exists():
            raise ValueError(f"the data of {self.folder} are no longer in {known}; say where they are with --data")
        return known

    def open_data(self, path: Path | None, *, resume: bool = False, download: bool = False) -> Dataset:
        """The data that it was trained on, in `path` or where they were then; see `open_data`."""
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
        """The network of this run, without its weights."""
        return channels_last(network_for(self.recipe, self.data, self.parts))

    def change_data(self, data: DataInfo, step: int) -> None:
        """From `step` on it trains on other `data`, if they are others; the record of those before is kept."""
        if self.data.same_content(data):
            return
        write_json(self.folder / UNTIL.format(f"{step:08d}"), self.data.as_dict())
        write_json(self.folder / "data.json", data.as_dict())
        del self.data  # it is read again

    def data_files(self, step: int) -> tuple[Path, list[Path]]:
        """The record of the data that it was trained on at `step`, and the records of those before."""
        named = {path: re.fullmatch(UNTIL.format(r"(\d+)"), path.name) for path in self.folder.iterdir()}
        until = {path: int(found[1]) for path, found in named.items() if found}
        earlier = sorted((path for path, last in until.items() if last < step), key=until.__getitem__)
        later = [path for path in until if path not in earlier]
        return min(later, key=until.__getitem__, default=self.folder / "data.json"), earlier

    @property
    def beginning(self) -> bool:
        """Whether it has never had a checkpoint, rather than none any more."""
        return (self.folder / BEGINNING).exists()

    def begun(self) -> None:
        """There is a checkpoint: the folder is no longer one of a run that only began."""
        (self.folder / BEGINNING).unlink(missing_ok=True)

    def refuse_other(self, recipe: Recipe) -> None:
        """Raise a ValueError if this is a run of another recipe."""
        found = differences(self.recipe, recipe)
        if found:
            told = [f"{k} is {as_text(own)} there and {as_text(new)} here" for k, (own, new) in found.items()]
            more = [f"and {len(told) - SHOWN} more differ"] if len(told) > SHOWN else []
            raise ValueError(
                f"{self.folder} holds a run of another recipe: {', '.join([*told[:SHOWN], *more])}; "
                "go on with its own settings, or choose another folder"
            )

    def discard_if_empty(self) -> None:
        """Remove a run that failed before its first epoch: it would only be in the way of the next try."""
        if self.folder.exists() and not self.metrics.exists() and not checkpoint.newest_step(self.checkpoints):
            (self.folder / BEGINNING).touch()
            _clear(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)

    def append(self, row: Row) -> None:
        """Add the line of an epoch to the metrics."""
        try:
            with open(self.metrics, "a", opener=_without_links) as file:
                file.write(self._line(row))
        except OSError as error:
            what = f"cannot write to {self.metrics}: {error.strerror}"
            raise OSError(f"{what}{checkpoint.intact(self.checkpoints)}") from error

    def rows(self) -> list[Row]:
        """The metrics, one row per finished epoch."""
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
        """Forget metrics of epochs after the first `epochs`: they will be run again."""
        self.write_rows([row for row in self.rows() if row["epoch"] <= epochs])

    def write_rows(self, rows: list[Row]) -> None:
        """Write the metrics anew."""
        with atomic_write(self.metrics) as part:
            part.write_text("".join(map(self._line, rows)))

    def _line(self, row: Row) -> str:
        """A row of the metrics; what is not finite is null."""
        return strict_json(finite_or_null(row), self.metrics.name) + "\n"

    def read(self, name: str) -> dict[str, Any]:
        """The content of a JSON file of the run."""
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
    """Whether this is the record of an epoch: its number, its last step, and what was measured."""
    if not isinstance(row, dict) or not isinstance(row.get("firing_rates", {}), dict):
        return False
    counts = [row.get("epoch"), row.get("step", 0)]
    measured = [row[name] for name in MEASURED if name in row] + [*row.get("firing_rates", {}).values()]
    return all(type(n) is int and 0 <= n < 2**53 for n in counts) and all(
        type(value) in (int, float) and abs(value) < 1e300 for value in measured
    )


def refuse_used(folder: Path) -> None:
    """Raise a ValueError if something is in `folder`, but for what a beginning that was killed has left there."""
    if (folder / BEGINNING).exists() and not (folder / "recipe.json").exists():
        return
    if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder; choose another one, or resume the run in it")


def _clear(folder: Path) -> None:
    """Remove what is in `folder` but for its lock; a kill meanwhile leaves a beginning, which is cleared again."""
    order = {"recipe.json": 0, BEGINNING: 2}
    for left in sorted(folder.iterdir() if folder.exists() else [], key=lambda path: order.get(path.name, 1)):
        if left.name != LOCK:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def own_folder(name: str) -> Path:
    """The first free runs/<name>-<number>, made here: another run may look for one at the same moment."""
    for folder in (Path("runs") / f"{name}-{number}" for number in count(1)):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OSError(f"cannot write to runs: {error.strerror}; choose another folder with --out") from error
        return folder
    raise AssertionError("numbers do not end")


def network_for(recipe: Recipe, data: DataInfo, parts: Parts | None = None) -> nn.Module:
    """The network of a recipe for such data, untrained."""
    parts = parts or Parts.of(recipe)
    soma = parts.neuron if recipe.normalisation == "tdbn" else VARIANTS[recipe.normalisation][1]
    ours = soma is Soma  # which every network takes by itself; only others need the parameter soma
    papers = {f.name: f.default for f in fields(Recipe)}
    return build(
        parts.network,
        num_classes=len(data.classes),
        in_channels=data.channels,
        image_size=data.size,
        decay=recipe.decay,
        v_th=recipe.v_th,
        width=recipe.width,
        memory=recipe.memory,
        **{name: getattr(recipe, name) for name in CHOICES if getattr(recipe, name) != papers[name]},
        **({} if ours else {"soma": soma}),
    )


def channels_last(network: nn.Module) -> nn.Module:
    """The network in the memory order that convolutions prefer."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load_data(
    recipe: Recipe, path: Path | None, loader: Dataset | Part | None = None, *, download: bool = False
) -> Dataset:
    """The data set of a recipe, or of `loader` in its place, from the files in `path`."""
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
    """The data for a network of `owner` that was trained on what `record` says; its normalisation decides.

    Data of other classes or shapes are refused. Other content is worth a warning, but must not continue a training.
    A file in the folder of a run knows, as the run does, where its data are.
    """
    if path is None and isinstance(owner, Path) and (owner.parent / PLACE).exists():
        path = Run(owner.parent).data_path(None)
    found = load_data(recipe, path, loader, download=download)
    record.refuse_others(found.info, owner)
    if not record.same_content(found.info):
        what = f"these data are not the ones that {owner} was trained on: labels or content differ"
        if resume:
            raise ValueError(f"{what}; continue it with its own data, or knowingly with these: --new-data")
        warnings.warn(what, stacklevel=2)
    return replace(found, info=replace(found.info, mean=record.mean, std=record.std))


def _check_size(run: Run, values: int) -> None:
    """Raise a ValueError if the network that the run describes is far larger than its `values`, before it is built."""
    try:
        with torch.device("meta"):
            made = network_for(run.recipe, run.data, run.parts)
    except Exception:  # a network of a user's that asks for values while it is made
        return
    if sum(p.numel() for p in made.state_dict().values()) > 2 * values:
        raise ValueError(f"the weights in {run.checkpoints} are not of the network in its recipe.json")


def load_network(run: Run) -> nn.Module:
    """The trained network of a run, ready for inference."""
    _ = run.recipe  # without one, the folder is no run at all
    weights = run.trained().weights
    _check_size(run, sum(w.numel() for w in weights.values()))
    network = run.network()
    first, _ = next(network.named_parameters())
    try:
        network.to(weights[first].dtype).load_state_dict(weights)
    except (KeyError, RuntimeError, TypeError):
        raise ValueError(f"the weights in {run.checkpoints} are not of the network in its recipe.json") from None
    except ValueError as error:
        raise ValueError(f"{run.checkpoints}: {error}") from None
    return network.eval()
