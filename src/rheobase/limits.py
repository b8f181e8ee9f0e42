"""How much memory a file may make the program use. Readers ask before they allocate.

A file may take 64 times its own size, or half a GiB if that is more. RHEOBASE_FILE_MEMORY, a number of MiB, takes the
place of the half GiB.
"""

import os

VARIABLE = "RHEOBASE_FILE_MEMORY"
MIB = 2**20
LEAST = 512  # MiB
MULTIPLE = 64


def allowed(size: int) -> int:
    """The bytes of memory that a file of `size` bytes may take."""
    text = os.environ.get(VARIABLE) or str(LEAST)
    if not (text.isdecimal() and 0 < len(text) < 10):
        raise ValueError(f"{VARIABLE}: expected a whole number of MiB, got '{text}'")
    return max(int(text) * MIB, MULTIPLE * size)


def check(needed: int, size: int, what: str) -> None:
    """Raise a ValueError if a file of `size` bytes asks for more than it may; `what` it is of it that does."""
    if needed > allowed(size):
        wanted = -(-needed // MIB)
        raise ValueError(
            f"{what} would take {wanted} MiB of memory, a file of this size may take {allowed(size) // MIB}; "
            f"if you trust it, set {VARIABLE}={wanted}"
        )
