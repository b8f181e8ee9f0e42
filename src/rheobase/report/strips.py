"""Accuracies in a terminal: a line for each on one scale, with the mean and its deviation."""

from collections.abc import Sequence


def strips(values: Sequence[tuple[float, float, float]], width: int) -> tuple[list[str], float, float]:
    """A line for every (value, deviation, other value): `o` on dashes, and `x`; and the ends of the scale."""
    low = min(min(value - deviation, other) for value, deviation, other in values)
    high = max(max(value + deviation, other) for value, deviation, other in values)

    def place(v: float) -> int:
        return round((v - low) / ((high - low) or 1) * (width - 1))

    lines = []
    for value, deviation, other in values:
        line = [" "] * width
        for i in range(place(value - deviation), place(value + deviation) + 1):
            line[i] = "-"
        line[place(other)] = "x"
        line[place(value)] = "o"  # on top: what counts
        lines.append("".join(line).rstrip())
    return lines, low, high
