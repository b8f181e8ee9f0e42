"""A chart as plain data. `plots` draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Chart:
    """A chart of lines, or of bars side by side. Each series maps a label to (x, y)."""

    title: str
    x: str
    y: str
    series: Mapping[str, tuple[Sequence[float | str], Sequence[float]]]
    bars: bool = False
    log: bool = False
    log_x: bool = False
