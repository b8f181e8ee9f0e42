"""Shared by the tests of benchmarks."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def to_come(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], list[int]]:
    """A function that watches a benchmark: how many parts are still to come, according to every result it writes."""

    def watch(benchmark: ModuleType) -> list[int]:
        said: list[int] = []
        write = benchmark.write_result

        def note(*arguments: Any, to_come: int = 0, **how: Any) -> None:
            said.append(to_come)
            write(*arguments, to_come=to_come, **how)

        monkeypatch.setattr(benchmark, "write_result", note)
        return said

    return watch
