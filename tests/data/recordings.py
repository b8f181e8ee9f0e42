"""Recordings made up for tests, and writers of the formats that the package reads."""

import io
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
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


def aedat_2_davis(e: Events, chip: str = "") -> bytes:
    """AEDAT 2.0 of a DAVIS, with a sample of a frame, one of motion and an external event after every event."""
    address = e.y.astype(np.uint32) << 22 | e.x.astype(np.uint32) << 12 | e.p.astype(np.uint32) << 11
    others = [address | 1 << 31 | 77, address | 1 << 31 | 3 << 10, np.full_like(address, 1 << 10 | 2)]
    pairs = np.stack([np.stack([address, *others], 1).ravel(), np.repeat(e.t, 4)], 1).astype(">u4")
    header = f"#!AER-DAT2.0\r\n# HardwareInterface: DAVIS FX3\r\n{chip and f'# AEChip: {chip}'}\r\n"
    return header.replace("\r\n\r\n", "\r\n").encode() + pairs.tobytes()


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


DESCRIPTION = """<dv version="2.0"><node name="outInfo" path="/mainloop/Recorder/outInfo/">
<node name="0" path="/0/"><attr key="typeIdentifier" type="string">FRME</attr><node name="info" path="/0/info/">
<attr key="sizeX" type="int">8</attr><attr key="sizeY" type="int">9</attr></node></node>
<node name="3" path="/3/"><attr key="typeIdentifier" type="string">EVTS</attr><node name="info" path="/3/info/">
<attr key="sizeX" type="int">{}</attr><attr key="sizeY" type="int">{}</attr></node></node></node></dv>"""


def aedat_4(e: Events, per_packet: int = 19) -> bytes:
    """Uncompressed, in FlatBuffers laid out by hand: a track of frames, and one of events in packets of so many."""
    packets = b""
    for start in range(0, len(e.t), per_packet):
        part = slice(start, start + per_packet)
        rows = np.zeros(len(e.t[part]), [("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("on", "u1"), ("", "V3")])
        rows["t"], rows["x"], rows["y"], rows["on"] = e.t[part], e.x[part], e.y[part], e.p[part]
        # root -> table at 20 (fields at 14: 6 bytes of fields, 8 of table, one field at 4) -> vector at 28
        body = pack("<I4s2x3HiII", 16, b"EVTS", 6, 8, 4, 6, 4, len(rows)) + rows.tobytes()
        packets += pack("<iI", 0, 5) + b"frame"
        packets += pack("<iII", 3, len(body) + 4, len(body)) + body
    text = DESCRIPTION.format(e.width, e.height).encode()
    size = 44 + len(text) + 1
    # table at 20 (fields at 8: compression at 4, position at 8, description at 16)
    head = pack("<I4s5H2xiiqI", 20, b"IOHE", 10, 20, 4, 8, 16, 12, 0, 18 + size + len(packets), 4)
    return b"#!AER-DAT4.0\r\n" + pack("<I", size) + head + pack("<I", len(text)) + text + b"\0" + packets + b"table"


def dat(e: Events) -> bytes:
    """Version 2: 32 bits of time, 14 of x, 14 of y, 4 of polarity."""
    place = e.x.astype(np.uint32) | e.y.astype(np.uint32) << 14 | e.p.astype(np.uint32) << 28
    pairs = np.stack([e.t & (2**32 - 1), place], 1).astype("<u4")
    header = f"% Data file containing CD events.\n% Version 2\n% Height {e.height}\n% Width {e.width}\n"
    return header.encode() + b"\x0c\x08" + pairs.tobytes()


def evt_2(e: Events) -> bytes:
    """A word for the upper 28 of 34 bits of time where these change, and one for each event."""
    words = []
    high = -1
    for t, x, y, p in zip(*(getattr(e, name).tolist() for name in "txyp"), strict=True):
        if t >> 6 != high:
            high = t >> 6
            words.append(0x8 << 28 | high & (2**28 - 1))
        words.append(p << 28 | (t & 63) << 22 | x << 11 | y)
    return f"% evt 2.0\n% geometry {e.width}x{e.height}\n".encode() + np.array(words, "<u4").tobytes()


def evt_3(e: Events) -> bytes:
    """The upper and the lower 12 of 24 bits of time where they change, a word for y, and one for x; between, a trigger.

    The upper bits count up without leaving any number out, as a camera repeats them.
    """
    words: list[int] = []
    high, low = 0, -1
    for t, x, y, p in zip(*(getattr(e, name).tolist() for name in "txyp"), strict=True):
        while high < t >> 12:
            high, low = high + 1, -1
            words.append(0x8 << 12 | high & 4095)
        if t & 4095 != low:
            low = t & 4095
            words.append(0x6 << 12 | low)
        words += [0xA << 12 | 1, y, 0x2 << 12 | p << 11 | x]
    header = f"% camera_integrator_name Us\n% format EVT3;height={e.height};width={e.width}\n% end\n"
    return header.encode() + np.array(words, "<u2").tobytes()


def csv(e: Events) -> bytes:
    rows = np.stack([e.t, e.x, e.y, e.p], 1).tolist()
    lines = [f"t,x@{e.width},y@{e.height},p", *(",".join(map(str, row)) for row in rows)]
    return "\n".join(lines).encode() + b"\n"


def by_faery(e: Events, path: Path, **options: Any) -> Path:
    """Written by faery's own encoders, in the format that the name tells."""
    faery = pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    rows = np.zeros(len(e), faery.EVENTS_DTYPE)
    for name in "txyp":
        rows[name] = getattr(e, name)
    faery.events_stream_from_array(rows, (e.width, e.height)).to_file(path, **options)
    return path


def same(a: Events, b: Events) -> bool:
    columns = zip((a.t, a.x, a.y, a.p), (b.t, b.x, b.y, b.p), strict=True)
    return all(np.array_equal(c, d) for c, d in columns) and (a.width, a.height) == (b.width, b.height)
