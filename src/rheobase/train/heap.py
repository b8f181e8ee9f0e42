"""The heap of the C library, from which tensors on a CPU are allocated."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # constants from malloc.h


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocation instead of returning it to the system.

    Every training step frees its tensors and allocates the same again, and every fresh page from the system costs a
    page fault. The process therefore keeps its peak memory. This works with the GNU C library; elsewhere it does
    nothing.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_TRIM_THRESHOLD, -1)  # never trim
        mallopt(_MMAP_MAX, 0)  # no separate mappings for large blocks
