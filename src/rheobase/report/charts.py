"""A chart as plain data. `plots` draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    low: float | None = None
    """Where the y axis begins."""
    mark: tuple[str, float] | None = None
    """Label and x of an upright line."""
    looks: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """By label, the numbers of colour and dashes of a line, without dashes of points. Others count both."""
