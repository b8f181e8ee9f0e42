"""Progress of training: a live bar on a terminal, one line per epoch elsewhere."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

BUSY = 0.25  # fraction of the time without a core above which other processes clearly slow this one down
_IMPORTED = time.monotonic()

Advise = Callable[[Path, float], str | None]


def process_seconds() -> float:
    """Return the seconds since this process started. Without /proc, count from the import of this module."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError):
        return time.monotonic() - _IMPORTED


def waited_seconds() -> float:
    """Return how long this process was ready to run but waited for a core; 0 if the system does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Waiting:
    """Measures, from its creation on, the fraction of time that this process waits for a core."""

    def __init__(self) -> None:
        self.began, self.waited = time.monotonic(), waited_seconds()

    def describe(self) -> str:
        """Return what to add to a line of progress; nothing if there are enough cores."""
        share = (waited_seconds() - self.waited) / max(time.monotonic() - self.began, 1e-9)
        return f"  (busy machine: waited for a core {100 * share:.0f} % of the time)" if share > BUSY else ""


class Reporter:
    """Receives the progress of training, and shows nothing. Subclasses show it."""

    def note(self, sentence: str) -> None:
        """Receive something to know before training starts."""

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        """Training starts, with `epochs` of `steps` each. `done` steps are done already."""

    def due(self) -> bool:
        """Return whether `step` is to be called after this step. Its numbers cost a synchronisation."""
        return False

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        """`done` steps are done. The speed is in images per second."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is done. `row` is its line in metrics.jsonl."""

    def stop(self) -> None:
        """Training is finished or was interrupted."""


class Lines(Reporter):
    """Print one line per epoch. Before training, print what `advise` says for the folder and the fraction left."""

    def __init__(self, console: Console, advise: Advise | None = None) -> None:
        self.console, self.advise, self.epochs, self.waiting = console, advise, 0, Waiting()

    def note(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, soft_wrap=True)

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        self.epochs = epochs
        if self.advise and done < epochs * steps and (line := self.advise(folder, 1 - done / (epochs * steps))):
            self.note(line)
        self.waiting = Waiting()

    def epoch(self, row: dict[str, Any]) -> None:
        line = describe(row, self.epochs) + self.waiting.describe()
        self.console.print(line, highlight=False, soft_wrap=True)
        self.waiting = Waiting()


class Bar(Lines):
    """Show a live bar with loss, accuracy, images per second and the time left, below one line per epoch."""

    def __init__(self, console: Console, advise: Advise | None = None) -> None:
        super().__init__(console, advise)
        self.seen = 0.0
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),  # on a narrow terminal this gives way, and not the numbers
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
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
    """Return the line of an epoch."""
    test = f"  test {100 * row['test_accuracy']:.2f} %" if "test_accuracy" in row else ""
    return (
        f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.4f}  train {100 * row['train_accuracy']:.2f} %{test}"
        f"  {row['images_per_second']:.0f} images/s"
    )


def reporter_for(console: Console | None = None, advise: Advise | None = None) -> Reporter:
    """Return a bar for a terminal, and lines for anything else, such as a notebook."""
    console = console or Console()
    return Bar(console, advise) if console.is_terminal else Lines(console, advise)
