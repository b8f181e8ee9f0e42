"""Write the metrics of a run as scalars for TensorBoard."""

from pathlib import Path
from typing import Any

from rheobase.extras import need
from rheobase.train.progress import Reporter


class TensorBoard(Reporter):
    """Writes the metrics of every epoch for TensorBoard into the run folder, and passes everything on to `inner`."""

    def __init__(self, inner: Reporter) -> None:
        need("tensorboard", "TensorBoard")
        self.inner, self.writer_class = inner, need("torch.utils.tensorboard", "TensorBoard").SummaryWriter

    def note(self, sentence: str) -> None:
        self.inner.note(sentence)

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        # drop later steps: a run that was stopped has written them, and they will run again
        self.writer = self.writer_class(str(folder / "tensorboard"), purge_step=done + 1)
        self.inner.start(folder, epochs, steps, done)

    def due(self) -> bool:
        return self.inner.due()

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        self.inner.step(done, loss, accuracy, speed)

    def epoch(self, row: dict[str, Any]) -> None:
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
