"""What a training run shows: a live bar on a terminal, one line per epoch elsewhere."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

BUSY = 0.25  # of the time without a core: other processes slow this one down
_IMPORTED = time.monotonic()

Advise = Callable[[Path, float], str | None]


def process_seconds() -> float:
    """Since this process was started; where the system does not tell (no /proc), since this module was imported."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError):
        return time.monotonic() - _IMPORTED


def waited_seconds() -> float:
    """How long this process, ready to work, has waited for a core; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Waiting:
    """The share of the time that this process has waited for a core, since `begin`."""

    def begin(self) -> None:
        self.began, self.waited = time.monotonic(), waited_seconds()

    def describe(self) -> str:
        """What to add to a line of progress: nothing while there are cores enough."""
        share = (waited_seconds() - self.waited) / max(time.monotonic() - self.began, 1e-9)
        return f"  (busy machine: no core for it {100 * share:.0f} % of the time)" if share > BUSY else ""


class Reporter:
    """Told of every epoch, and of a step when `due` says so (its numbers cost a synchronisation); shows nothing."""

    def note(self, sentence: str) -> None:
        """Something to know before it starts."""

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        """Training begins, of `epochs` with `steps` each, of which so many are `done`."""

    def due(self) -> bool:
        """Whether the next step is to be told of."""
        return False

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        """A step of the epoch is done; speed is in images per second."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is done; `row` is its line of metrics.jsonl."""

    def stop(self) -> None:
        """Training is over, or was interrupted."""


class Lines(Reporter):
    """One line per epoch. `advise` makes one of the folder and the share that is left, before it begins."""

    def __init__(self, console: Console, advise: Advise | None = None) -> None:
        self.console, self.advise, self.epochs, self.waiting = console, advise, 0, Waiting()

    def note(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, soft_wrap=True)

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        self.epochs = epochs
        if self.advise and done < epochs * steps and (line := self.advise(folder, 1 - done / (epochs * steps))):
            self.console.print(line, highlight=False, soft_wrap=True)
        self.waiting.begin()

    def epoch(self, row: dict[str, Any]) -> None:
        line = describe(row, self.epochs) + self.waiting.describe()
        self.console.print(line, highlight=False, soft_wrap=True)
        self.waiting.begin()


class Bar(Lines):
    """A live bar with loss, accuracy, images per second and the time left, above it one line per epoch."""

    def __init__(self, console: Console, advise: Advise | None = None) -> None:
        super().__init__(console, advise)
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
        numbers = f"loss {loss:.3f}  accuracy {100 * accuracy:.1f} %  {speed:.0f} images/s{self.waiting.describe()}"
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


def reporter_for(console: Console, advise: Advise | None = None) -> Reporter:
    return Bar(console, advise) if console.is_terminal else Lines(console, advise)
