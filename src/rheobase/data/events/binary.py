"""The binary format of N-MNIST and N-Caltech101 (G. Orchard et al., 2015): 40 bits per event, big-endian.

x and y take a byte each, polarity one bit and the time 23 bits. An event at y = 240 means that the clock has advanced
by another 2^13 us.
"""

import numpy as np

from rheobase.data.events.stream import Events, OnError, Problems, checked

NMNIST = (34, 34)
OVERFLOW_Y, OVERFLOW_US = 240, 2**13


def decode(content: bytes, source: str, size: tuple[int, int] = NMNIST, on_error: OnError = "raise") -> Events:
    """Decode a recording in this format."""
    problems = Problems(source, on_error)
    number, rest = divmod(len(content), 5)
    if rest:
        problems.found("truncated", f"only {rest} of the 5 bytes of an event", 5 * number)
    words = np.frombuffer(content, np.uint8, 5 * number).reshape(-1, 5)
    x, y, high, middle, low = words.T.astype(np.int64)
    t = (high & 127) << 16 | middle << 8 | low
    overflows = y == OVERFLOW_Y
    kept = np.flatnonzero(~overflows)
    if len(kept) != number:
        t += np.cumsum(overflows) * OVERFLOW_US
        t, x, y, high = t[kept], x[kept], y[kept], high[kept]
    return checked(
        problems,
        t,
        x.astype(np.uint16),
        y.astype(np.uint16),
        (high >> 7).astype(np.uint8),
        size,
        lambda i: 5 * int(kept[i]) if len(kept) else 0,
    )
