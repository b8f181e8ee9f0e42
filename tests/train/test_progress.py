"""The line of progress says when other processes slow the training down."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rheobase.train import progress


@pytest.mark.parametrize(("waited", "said"), [(0.0, ""), (2.0, ""), (6.0, "waited for a core 60 % of the time")])
def test_a_busy_machine_is_named(waited: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 100.0, "waited": 5.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(progress, "waited_seconds", lambda: clock["waited"])
    waiting = progress.Waiting()
    clock["now"], clock["waited"] = 110.0, 5.0 + waited
    assert (said in waiting.describe()) if said else waiting.describe() == ""


def test_the_system_tells_how_long_was_waited_or_nothing() -> None:
    first = progress.waited_seconds()
    assert 0 <= first <= progress.waited_seconds()


def test_a_bar_on_a_narrow_terminal_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar itself gives way. That the machine is busy is said by the line of the epoch, which may be long."""
    busy = "  (busy machine: waited for a core 53 % of the time)"
    monkeypatch.setattr(progress.Waiting, "describe", lambda self: busy)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    bar = progress.Bar(console)
    bar.start(Path("run"), 60, 200, 3000)
    bar.step(3456, 1.407, 0.287, 1423)
    with console.capture() as shown:
        console.print(bar.bar.get_renderable())
    bar.epoch({"epoch": 17, "step": 3400, "loss": 1.2, "train_accuracy": 0.5, "images_per_second": 900})
    bar.stop()
    for part in ("training", "3456/12000", "loss 1.407", "accuracy 28.7 %", "1423 images/s", ":--"):
        assert part in shown.get()
    assert "…" not in shown.get()
    assert busy in screen.getvalue().replace("\r\n", "")
