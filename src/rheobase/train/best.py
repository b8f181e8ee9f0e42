"""Keep the best epoch of a run, next to the last one, in its folder `best`, which is a run itself.

During training, the checkpoints hold the best weights too, so a resumed run has the same ones.
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from rheobase.files import atomic_write, write_json
from rheobase.train import checkpoint, origins
from rheobase.train.checkpoint import Checkpoint, Tensors
from rheobase.train.runs import START, Row, Run


class Epoch(NamedTuple):
    """The best epoch at the time of a checkpoint."""

    row: dict[str, Any]
    """Number, step and test accuracy; empty before the first evaluation."""
    weights: Tensors


class Best:
    """The epoch with the highest test accuracy so far; of equal ones, the first."""

    def __init__(self, run: Run, part_bytes: int | None) -> None:
        self.run, self.part_bytes = run, part_bytes
        self.epoch = Epoch({}, {})
        self.written = 0  # the epoch that the folder holds; 0 if unknown, as in a resumed run

    def see(self, row: Row, network: nn.Module) -> None:
        """Remember `network` if its `row` of metrics is better than that of any epoch before."""
        if row.get("test_accuracy", -1.0) > self.epoch.row.get("test_accuracy", -1.0):
            kept = {key: row[key] for key in ("epoch", "step", "test_accuracy")}
            weights = {name: t.detach().to("cpu", copy=True) for name, t in network.state_dict().items()}
            self.epoch = Epoch(kept, weights)

    def restore(self, saved: Checkpoint) -> None:
        """Take the best epoch from a checkpoint."""
        self.epoch = Epoch(saved.state.get("best", {}), saved.tensors.get("best", {}))

    def write(self, epoch: Epoch) -> None:
        """Write `epoch` to the folder, unless it is there already."""
        if epoch.row.get("epoch", 0) == self.written:
            return
        run, own = self.run, Run(self.run.best)
        tensors = {"weights": epoch.weights}
        path = checkpoint.save(own.checkpoints, epoch.row["step"], tensors, {}, part_bytes=self.part_bytes)
        for other in own.checkpoints.glob("[0-9]*"):
            if other != path:
                shutil.rmtree(other)
        data, earlier = run.data_files(epoch.row["step"])
        _copy(data, own.folder / "data.json")
        for path in earlier:
            _copy(path, own.folder / path.name)
        if not (own.folder / "recipe.json").exists():
            for name in ("environment.json", START, origins.FILE):
                if (run.folder / name).exists():
                    _copy(run.folder / name, own.folder / name)
            if (run.folder / origins.SOURCES).exists():
                shutil.copytree(run.folder / origins.SOURCES, own.folder / origins.SOURCES, dirs_exist_ok=True)
        own.write_rows([row for row in run.rows() if row["epoch"] <= epoch.row["epoch"]])
        # last, as this file makes the folder a run
        write_json(own.folder / "recipe.json", asdict(run.recipe))
        self.written = epoch.row["epoch"]


def _copy(path: Path, to: Path) -> None:
    with atomic_write(to) as part:
        shutil.copyfile(path, part)
