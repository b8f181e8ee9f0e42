"""Learning curves of a run, for people: a picture, and scalars for TensorBoard."""

from pathlib import Path
from typing import Any

from rheobase.progress import Reporter

Row = dict[str, Any]


def figure(width: float, height: float) -> Any:
    """An empty figure of matplotlib, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("a plot needs the package matplotlib; install rheobase[plots]") from None
    return Figure(figsize=(width, height), layout="constrained")


def plot(rows: list[Row], path: Path) -> None:
    """Loss and accuracy by epoch, as a picture."""
    picture = figure(9, 3.5)
    losses, accuracies = picture.subplots(1, 2)
    for axes, names, scale in (
        (losses, ("loss", "test_loss"), 1),
        (accuracies, ("train_accuracy", "test_accuracy"), 100),
    ):
        for name, label in zip(names, ("training", "test"), strict=True):
            points = [(row["epoch"], scale * row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else "")
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        axes.legend()
    losses.set_ylabel("loss")
    accuracies.set_ylabel("accuracy, %")
    picture.savefig(path, dpi=120)


class TensorBoard(Reporter):
    """Writes the metrics of every epoch for TensorBoard into the run folder, and passes everything on."""

    def __init__(self, inner: Reporter) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("TensorBoard needs the package tensorboard; install rheobase[tensorboard]") from None
        self.inner, self.writer_class = inner, SummaryWriter

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        # steps after those done are there from a run that was stopped, and come again
        self.writer = self.writer_class(str(folder / "tensorboard"), purge_step=done + 1)
        self.inner.start(folder, epochs, steps, done)

    def due(self) -> bool:
        return self.inner.due()

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        self.inner.step(done, loss, accuracy, speed)

    def epoch(self, row: Row) -> None:
        for name, value in row.items():
            if name == "firing_rates":
                for layer, rate in value.items():
                    self.writer.add_scalar(f"firing_rate/{layer}", rate, row["step"])
            elif name not in ("epoch", "step"):
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()
        self.inner.epoch(row)

    def stop(self) -> None:
        self.writer.close()
        self.inner.stop()
