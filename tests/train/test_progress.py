"""The line of progress says when other processes slow the training down."""

import pytest

from rheobase.train import progress


@pytest.mark.parametrize(("waited", "said"), [(0.0, ""), (2.0, ""), (6.0, "waited for a core 60 % of the time")])
def test_a_busy_machine_is_named(waited: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 100.0, "waited": 5.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(progress, "waited_seconds", lambda: clock["waited"])
    waiting = progress.Waiting()
    waiting.begin()
    clock["now"], clock["waited"] = 110.0, 5.0 + waited
    assert (said in waiting.describe()) if said else waiting.describe() == ""


def test_the_system_tells_how_long_was_waited_or_nothing() -> None:
    first = progress.waited_seconds()
    assert 0 <= first <= progress.waited_seconds()
