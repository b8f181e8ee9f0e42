"""Draw accuracies in a terminal: one line each, on a common scale, with mean and deviation."""

from collections.abc import Sequence


def strips(values: Sequence[tuple[float, float, float]], width: int) -> tuple[list[str], float, float]:
    """Draw a line for every (value, deviation, other value) and return the lines and the ends of the scale.

    The value is an `o`, its deviation dashes, and the other value an `x`.
    """
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
        line[place(value)] = "o"  # last, so that it is on top
        lines.append("".join(line).rstrip())
    return lines, low, high
