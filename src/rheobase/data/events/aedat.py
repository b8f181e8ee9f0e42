"""AEDAT 2.0 and 3.1, the formats of the cameras DVS128 and DAVIS (inivation.gitlab.io/inivation-docs).

AEDAT 2.0 is a text header followed by big-endian pairs of address and time. AEDAT 3.1 is a text header followed by
little-endian packets, each with one type of event. Only polarity events are read; others, such as frames, are skipped.
"""

import re
from struct import Struct

import numpy as np

from rheobase.data.events.stream import Events, OnError, Problems, checked

MAGIC_2, MAGIC_3 = b"#!AER-DAT2.0", b"#!AER-DAT3.1"
HEADER_END = b"#!END-HEADER\r\n"
DVS128 = (128, 128)
CAMERAS = {"DVS128": DVS128, "DAVIS240": (240, 180), "DAVIS346": (346, 260), "DAVIS640": (640, 480)}
SPECIAL = 0x8000  # address bit of external events of a DVS128 in AEDAT 2.0
DAVIS_OTHERS = 1 << 31 | 1 << 10  # address bits of frames, of motion and of external events of a DAVIS in AEDAT 2.0
POLARITY, LAST_TYPE = 1, 13  # packet types in AEDAT 3.1
PACKET = Struct("<HHIIIIII")  # type, source, event size, offset of the time, overflow, capacity, number, valid


def decode_2(content: bytes, source: str, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Decode AEDAT 2.0 of a DVS128 or a DAVIS, whose addresses are laid out differently, as the camera counts.

    A DVS128 has y, x and polarity in bits 8-14, 1-7 and 0; a DAVIS in bits 22-30, 12-21 and 11. The header names the
    camera. If it does not, addresses of more than 16 bits are those of a DAVIS of this `size`. The viewer jAER mirrors
    x, and of a DVS128 it calls a polarity of 0 brighter. Times have 32 bits and wrap around after 71 minutes.
    """
    problems = Problems(source, on_error)
    start = 0
    while content.startswith(b"#", start):
        end = content.find(b"\n", start)
        if end < 0:
            problems.found("header", "an unterminated header line", start)
            end = len(content) - 1
        start = end + 1
    number, rest = divmod(len(content) - start, 8)
    if rest:
        problems.found("truncated", f"only {rest} of the 8 bytes of an event", start + 8 * number)
    pairs = np.frombuffer(content, ">u4", 2 * number, start).reshape(-1, 2).astype(np.uint32)
    address, t = pairs[:, 0], pairs[:, 1].astype(np.int64)
    camera = re.search(rb"^# *AEChip:.*?(davis\d+|dvs128)", content[:start], re.MULTILINE | re.IGNORECASE)
    name = camera[1].decode().upper() if camera else ""
    wide = size is not None and size != DVS128 and 2 * np.count_nonzero(address >> 16) > number
    davis = name.startswith("DAVIS") or (not name and wide)
    kept = np.flatnonzero((address & np.uint32(DAVIS_OTHERS if davis else SPECIAL)) == 0)
    if len(kept) != number:
        address, t = address[kept], t[kept]
    steps = np.diff(t)
    starts_again = steps < -(2**31)
    if starts_again.any() and not (steps > 2**31).any():  # a jump up and down again is a single wrong time
        t[1:] += np.cumsum(starts_again) << 32
    if davis:
        x, y, p = (address >> 12) & 1023, (address >> 22) & 511, (address >> 11) & 1
        size = CAMERAS.get(name) or size or DVS128
    else:  # bits above the 15 of an address would be lost, so give such an event a y outside every sensor
        x, y, p = (address >> 1) & 127, np.where(address >> 16, np.uint32(0xFFFF), address >> 8), address & 1
        size = DVS128
    return checked(problems, t, x, y, p, size, lambda i: start + 8 * int(kept[i]) if len(kept) else start)


def decode_3(content: bytes, source: str, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Decode AEDAT 3.1: the valid polarity events of the camera named in the header."""
    problems = Problems(source, on_error)
    end_of_header = content.find(HEADER_END)
    if end_of_header < 0:
        problems.found("header", "a header without the final line #!END-HEADER", 0)
        end_of_header = len(content)
    camera = re.search(rb"^#Source \d+: ([A-Z]+\d+)", content[:end_of_header], re.MULTILINE)
    size = CAMERAS.get(camera[1].decode() if camera else "") or size or DVS128
    packets = _packets(content, end_of_header + len(HEADER_END), problems)
    words = [np.frombuffer(content, "<u4", 2 * n, start).reshape(-1, 2) for start, n, _ in packets]
    pairs = np.concatenate([np.empty((0, 2), "<u4"), *words])
    counts = [n for _, n, _ in packets]
    address, t = pairs[:, 0], pairs[:, 1].astype(np.int64)

    def offset(i: int) -> int:
        if not packets:
            return len(content)
        packet = int(np.searchsorted(np.cumsum(counts), i, side="right"))
        return packets[packet][0] + 8 * (i - sum(counts[:packet]))

    valid = (address & 1).astype(bool)
    late = t >= 2**31
    if late.any():
        first = int(late.argmax())
        problems.found("negative", "a negative time", offset(first), int(late.sum()))
        valid &= ~late
    t += np.repeat(np.array([overflow << 31 for _, _, overflow in packets], np.int64), counts)
    index = np.arange(0)
    if not valid.all():
        index = np.flatnonzero(valid)
        address, t = address[index], t[index]
    return checked(
        problems,
        t,
        (address >> 17).astype(np.uint16),
        (address >> 2).astype(np.uint16) & 0x7FFF,
        (address >> 1).astype(np.uint8) & 1,
        size,
        lambda i: offset(int(index[i]) if len(index) else i),
    )


def _packets(content: bytes, start: int, problems: Problems) -> list[tuple[int, int, int]]:
    """Return for every polarity packet where its events begin, their number, and the overflow of their times."""
    found = []
    while start < len(content):
        if len(content) - start < PACKET.size:
            problems.found("truncated", "a packet header cut short", start)
            break
        kind, _, size, time_at, overflow, capacity, number, valid = PACKET.unpack_from(content, start)
        bad_layout = size < 4 or (kind == POLARITY and (size, time_at) != (8, 4))
        if kind > LAST_TYPE or capacity != number or valid > number or bad_layout:
            problems.found("packet", "an invalid packet header", start)
            break
        events, start = start + PACKET.size, start + PACKET.size + number * size
        if start > len(content):
            problems.found("truncated", f"a packet of {number} events cut short", events)
            number = (len(content) - events) // size
        if kind == POLARITY and number:
            found.append((events, number, overflow))
    return found
