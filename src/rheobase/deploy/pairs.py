"""Sizes of windows: two whole numbers, or one that stands for both. Plain Python: the simulator needs no torch."""

from typing import Any

LARGEST = 2**10 - 1


def pair(value: Any, least: int = 0) -> tuple[int, int]:
    """Height and width in a number, a sequence or an array; a ValueError if one is below `least` or too large."""
    plain = value.ravel().tolist() if hasattr(value, "ravel") else value
    first, second = (plain * 2 if len(plain) == 1 else plain) if isinstance(plain, list | tuple) else (plain, plain)
    if int(first) != first or int(second) != second or not least <= min(first, second) <= max(first, second) <= LARGEST:
        raise ValueError(f"expected one or two whole numbers from {least} to {LARGEST}, got {plain}")
    return int(first), int(second)
