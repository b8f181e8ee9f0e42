"""Limit the memory that reading a file may take. Readers check before they allocate.

The limit is 64 times the size of the file, or 512 MiB if that is more. Set RHEOBASE_FILE_MEMORY, in MiB, to replace the
512 MiB.
"""

import os

VARIABLE = "RHEOBASE_FILE_MEMORY"
MIB = 2**20
LEAST = 512  # MiB
MULTIPLE = 64


def allowed(size: int) -> int:
    """Return how many bytes of memory a file of `size` bytes may take."""
    text = os.environ.get(VARIABLE) or str(LEAST)
    if not (text.isdecimal() and 0 < len(text) < 10):
        raise ValueError(f"{VARIABLE}: expected a whole number of MiB, got '{text}'")
    return max(int(text) * MIB, MULTIPLE * size)


def check(needed: int, size: int, what: str) -> None:
    """Raise a ValueError if `needed` bytes are too many for a file of `size` bytes. `what` names the part that asks."""
    if needed > allowed(size):
        wanted = -(-needed // MIB)
        raise ValueError(
            f"{what} would take {wanted} MiB of memory, but a file of this size may take {allowed(size) // MIB}; "
            f"if you trust the file, set {VARIABLE}={wanted}"
        )
