"""Where tensors on a CPU come from: the C library's heap."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> None:
    """Let freed memory wait for the next allocation, however large, instead of going back to the system.

    Every training step frees its tensors and asks for the same again, and pages that come fresh from the system cost a
    page fault each. The process keeps the most memory it ever needed. It works with the GNU C library, and elsewhere
    does nothing.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_TRIM_THRESHOLD, -1)  # never
        mallopt(_MMAP_MAX, 0)  # no block has a mapping of its own
