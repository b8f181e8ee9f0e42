"""Whole numbers from files, and sizes of windows: two numbers, or one for both. The simulator uses it without torch."""

from collections.abc import Sequence
from typing import Any

LARGEST = 2**10 - 1
LARGEST_INPUT = 511  # default of a quantised network: 10 bits with sign
FRACTION_BITS = 8  # of biases, thresholds, potentials and wide weights of a quantised network


def pair(value: Any, least: int = 0) -> tuple[int, int]:
    """Return height and width from a number, a sequence or an array. Raise a ValueError if one is out of bounds."""
    plain = value.ravel().tolist() if hasattr(value, "ravel") else value
    both = list(plain) if isinstance(plain, list | tuple) else [plain]
    if not 1 <= len(both) <= 2 or not all(_is_whole(n) and least <= n <= LARGEST for n in both):
        raise ValueError(f"expected one or two whole numbers from {least} to {LARGEST}, got {str(plain)[:60]}")
    return int(both[0]), int(both[-1])


def positions(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> tuple[int, ...]:
    """Return height and width after sliding a window over an image of this `size`."""
    axes = zip(size, kernel, stride, padding, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)


def whole(value: Any, least: int, largest: int, what: str) -> int:
    """Return a whole number within these bounds, or raise a ValueError about `what`."""
    if not _is_whole(value) or not least <= value <= largest:
        raise ValueError(f"{what}: expected a whole number from {least} to {largest}, got {str(value)[:60]}")
    return int(value)


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())
