"""Signals that end training: the first one saves and stops after a step, a second one stops at once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
]  # not every system has all of them
AGAIN = 0.01  # seconds until a signal is repeated whose exception Python discarded
ECHO = 5.0  # seconds in which a launcher or scheduler may send the same signal again
SAVED = 75  # exit code: stopped and saved, the same command continues (EX_TEMPFAIL, "try again later")


class Interrupted(Exception):
    """Training was stopped by the signal `number`, after saving into `folder`."""

    def __init__(self, message: str, folder: Path, number: int) -> None:
        super().__init__(message)
        self.folder, self.number = folder, number


def exit_code(number: int, *, saved: bool) -> int:
    """Return the exit code of a command that the signal `number` ended. After Ctrl-C it is 130, as in a shell."""
    return SAVED if saved and number != signal.SIGINT else 128 + number


class Signals:
    """Remembers the first signal that asks to end; 0 if none came.

    During training steps, it is only remembered, as an exception in the middle of a step would leave half of the
    weights updated. At any other time there is nothing to save, and it raises a KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.number = 0
        self.at = 0.0
        self.stepping = False
        self.watching = False
        self.first = False  # whether the last exception came from the first signal
        # A signal may reach both the launcher and its processes, and the launcher passes it on.
        self.launched = "RANK" in os.environ

    @contextmanager
    def watched(self) -> Iterator["Signals"]:
        """Handle signals, if this is the main thread. Ignored signals stay ignored (SIGHUP under nohup)."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            wanted = [n for n in SIGNALS if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
            before = {number: signal.signal(number, self._receive) for number in wanted}
        try:
            with self._remembering() if before else nullcontext():
                yield self
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @contextmanager
    def kept_for_later(self) -> Iterator[None]:
        """Only remember signals: training steps are running."""
        self.stepping = True
        try:
            yield
        finally:
            self.stepping = False

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Repeat a signal a moment later if Python discards its exception.

        Python prints and discards exceptions raised while an object is deleted, which happens all the time.
        """
        hook = sys.unraisablehook

        def repeat(lost: Any) -> None:
            if not isinstance(lost.exc_value, KeyboardInterrupt) or not lost.exc_value.args:
                hook(lost)
                return
            if self.first:
                self.number = 0  # the repeated signal is the first one again
            threading.Timer(AGAIN, self._send, lost.exc_value.args).start()

        self.watching, sys.unraisablehook = True, repeat
        try:
            yield
        finally:
            self.watching, sys.unraisablehook = False, hook

    def _send(self, number: int) -> None:
        if self.watching:
            os.kill(os.getpid(), number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first = not self.number
        if first:
            self.number, self.at = number, now
            if self.stepping:
                return
        elif self.launched and now - self.at < ECHO:
            return
        self.first = first
        raise KeyboardInterrupt(number)
