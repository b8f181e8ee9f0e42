"""What a training run shows: a live bar on a terminal, one line per epoch elsewhere."""

import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_IMPORTED = time.monotonic()


def process_seconds() -> float:
    """Since this process was started; where the system does not tell (no /proc), since this module was imported."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError):
        return time.monotonic() - _IMPORTED


class Reporter:
    """Told of every epoch, and of a step when `due` says so (its numbers cost a synchronisation); shows nothing."""

    def note(self, sentence: str) -> None:
        """Something to know before it starts."""

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None: ...

    def due(self) -> bool:
        return False

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...


class Lines(Reporter):
    """One line per epoch."""

    def __init__(self, console: Console) -> None:
        self.console, self.epochs = console, 0

    def note(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, soft_wrap=True)

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        self.epochs = epochs

    def epoch(self, row: dict[str, Any]) -> None:
        self.console.print(describe(row, self.epochs), highlight=False, soft_wrap=True)


class Bar(Lines):
    """A live bar with loss, accuracy, images per second and the time left, above it one line per epoch."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.seen = 0.0
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
        )

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        super().start(folder, epochs, steps, done)
        self.task = self.bar.add_task("", total=epochs * steps, completed=done, numbers="")
        self.bar.start()

    def due(self) -> bool:
        if time.monotonic() - self.seen < 0.5:
            return False
        self.seen = time.monotonic()
        return True

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        numbers = f"loss {loss:.3f}  accuracy {100 * accuracy:.1f} %  {speed:.0f} images/s"
        self.bar.update(self.task, completed=done, numbers=numbers)

    def epoch(self, row: dict[str, Any]) -> None:
        super().epoch(row)
        self.bar.update(self.task, completed=row["step"])

    def stop(self) -> None:
        self.bar.stop()


def describe(row: dict[str, Any], epochs: int) -> str:
    test = f"  test {100 * row['test_accuracy']:.2f} %" if "test_accuracy" in row else ""
    return (
        f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.4f}  train {100 * row['train_accuracy']:.2f} %{test}"
        f"  {row['images_per_second']:.0f} images/s"
    )


def reporter_for(console: Console) -> Reporter:
    return Bar(console) if console.is_terminal else Lines(console)
