"""Recordings made up for tests, and writers of the formats that the package reads."""

import io
from struct import pack
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

from rheobase.data.events import Events


def recording(seed: int, number: int, width: int = 128, height: int = 128, until: int = 100_000) -> Events:
    random = np.random.default_rng(seed)
    return Events(
        np.sort(random.integers(0, until, number)),
        random.integers(0, width, number).astype(np.uint16),
        random.integers(0, height, number).astype(np.uint16),
        random.integers(0, 2, number).astype(np.uint8),
        width,
        height,
    )


def unchecked(e: Events, **columns: np.ndarray) -> SimpleNamespace:
    """For the writers alone: events with other columns, which need not be those of a recording."""
    return SimpleNamespace(**{name: getattr(e, name) for name in "txyp"} | columns)


def recordings(width: int, height: int, latest: int) -> st.SearchStrategy[Events]:
    event = st.tuples(st.integers(0, latest), st.integers(0, width - 1), st.integers(0, height - 1), st.integers(0, 1))

    def build(rows: list[tuple[int, int, int, int]]) -> Events:
        t, x, y, p = (np.array(column) for column in zip(*sorted(rows, key=lambda row: row[0]), strict=True))
        return Events(t, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8), width, height)

    return st.lists(event, min_size=1, max_size=40).map(build)


def aedat_2(e: Events, special_at: int | None = None) -> bytes:
    """`special_at`: an external event in front of the event of that index."""
    address = e.y.astype(np.uint32) << 8 | e.x.astype(np.uint32) << 1 | e.p
    pairs = np.stack([address, e.t], 1).astype(">u4")
    if special_at is not None:
        pairs = np.insert(pairs, special_at, (0x8000 | 77, e.t[special_at]), 0)
    return b"#!AER-DAT2.0\r\n# Timestamps tick: 1 us\r\n" + pairs.tobytes()


def packet(kind: int, size: int, overflow: int, body: bytes) -> bytes:
    number = len(body) // size
    return pack("<HHIIIIII", kind, 1, size, 4, overflow, number, number, number) + body


def aedat_3(e: Events, per_packet: int = 7) -> bytes:
    """Polarity packets, each after one of special events and one of a type with larger events."""
    parts = [b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#!END-HEADER\r\n"]
    data = e.x.astype(np.uint32) << 17 | e.y.astype(np.uint32) << 2 | e.p.astype(np.uint32) << 1 | 1
    overflow = e.t >> 31
    start = 0
    while start < len(e):
        same = np.flatnonzero(overflow[start:] != overflow[start])
        stop = min(start + per_packet, start + int(same[0]) if len(same) else len(e))
        pairs = np.stack([data[start:stop], e.t[start:stop] & (2**31 - 1)], 1).astype("<u4")
        clock = int(overflow[start])
        parts.append(packet(0, 8, clock, pack("<II", 3, 5)))
        parts.append(packet(3, 36, clock, bytes(72)))
        parts.append(packet(1, 8, clock, pairs.tobytes()))
        start = stop
    return b"".join(parts)


def nmnist(e: Events) -> bytes:
    word = e.p.astype(np.int64) << 23 | e.t
    return np.stack([e.x, e.y, word >> 16, word >> 8 & 255, word & 255], 1).astype(np.uint8).tobytes()


def npz(e: Events) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, t=e.t, x=e.x, y=e.y, p=e.p, width=e.width, height=e.height)
    return file.getvalue()


def same(a: Events, b: Events) -> bool:
    columns = zip((a.t, a.x, a.y, a.p), (b.t, b.x, b.y, b.p), strict=True)
    return all(np.array_equal(c, d) for c, d in columns) and (a.width, a.height) == (b.width, b.height)
