"""Whole numbers from files, and sizes of windows: two of them, or one for both. Plain: the simulator needs no torch."""

from typing import Any

LARGEST = 2**10 - 1
LARGEST_INPUT = 511  # of a quantised network that does not say it: signed, 10 bits
FRACTION_BITS = 8  # of its biases, thresholds and potentials, and of its wide weights


def pair(value: Any, least: int = 0) -> tuple[int, int]:
    """Height and width in a number, a sequence or an array; a ValueError if one is below `least` or too large."""
    plain = value.ravel().tolist() if hasattr(value, "ravel") else value
    both = list(plain) if isinstance(plain, list | tuple) else [plain]
    if not 1 <= len(both) <= 2 or not all(_is_whole(n) and least <= n <= LARGEST for n in both):
        raise ValueError(f"expected one or two whole numbers from {least} to {LARGEST}, got {str(plain)[:60]}")
    return int(both[0]), int(both[-1])


def whole(value: Any, least: int, largest: int, what: str) -> int:
    """A whole number within these bounds; a ValueError says `what` is not one."""
    if not _is_whole(value) or not least <= value <= largest:
        raise ValueError(f"{what}: expected a whole number from {least} to {largest}, got {str(value)[:60]}")
    return int(value)


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())
