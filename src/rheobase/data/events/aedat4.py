"""AEDAT 4, the format of iniVation's DV (inivation.gitlab.io/inivation-docs): packets of many kinds, maybe compressed.

A FlatBuffers header states the compression, where the packets end, and, as XML, what they hold. With several cameras,
the first one is read. Frames, triggers and IMU data are skipped.
"""

from collections.abc import Iterator
from struct import Struct, calcsize, pack, unpack_from
from xml.etree import ElementTree

from rheobase import limits
from rheobase.data.events.ferry import ferried
from rheobase.data.events.stream import LARGEST, Events, OnError, Problems, fits
from rheobase.data.events.unpacking import largest

MAGIC = b"#!AER-DAT4.0\r\n"
PACKET = Struct("<iI")  # track and number of bytes
COMPRESSIONS = range(5)
ONE_TRACK = (
    '<dv version="2.0"><node name="outInfo" path="/"><node name="0" path="/"><attr key="typeIdentifier" type="string">'
    f'EVTS</attr><node name="info" path="/"><attr key="sizeX" type="int">{LARGEST}</attr>'
    f'<attr key="sizeY" type="int">{LARGEST}</attr></node></node></node></dv>'
).encode()


def decode(content: bytes, source: str, on_error: OnError = "raise") -> Events:
    """Decode the events of the first camera."""
    problems = Problems(source, on_error)
    try:
        (length,) = unpack_from("<I", content, len(MAGIC))
        start = len(MAGIC) + 4 + length
        compression, stop, description = _header(content[start - length : start])
        track, size = _camera(description)
    except Exception as error:  # damage makes the parsers fail in many ways
        raise ValueError(f"{source}: no AEDAT 4 header at byte {len(MAGIC)} ({error}); get the file again") from None
    packets = list(_packets(content, start, len(content) if stop == -1 else stop, track, problems))
    for packet in packets:
        limits.check(largest(packet, compression), len(content), f"{source}: a packet")
    parts = (part for packet in packets for part in (PACKET.pack(0, len(packet)), packet))
    return ferried("aedat", [_written(compression), *parts], problems, size)


def _header(table: bytes) -> tuple[int, int, str]:
    """Return the compression, where the packets end (-1: at the end of the file), and the description."""

    def number(form: str, at: int) -> int:
        if not 0 <= at <= len(table) - calcsize(form):
            raise ValueError("it points outside itself")
        return int(unpack_from(form, table, at)[0])

    root = number("<I", 0)
    fields = root - number("<i", root)
    known = (number("<H", fields) - 4) // 2

    def place(field: int) -> int:
        """Return the position of a field; 0 if it has its default."""
        offset = number("<H", fields + 4 + 2 * field) if field < known else 0
        return root + offset if offset else 0

    compression = number("<i", place(0)) if place(0) else 0
    stop = number("<q", place(1)) if place(1) else -1
    if compression not in COMPRESSIONS or stop < -1 or not place(2):
        raise ValueError(f"compression {compression}, end at {stop}")
    text = place(2) + number("<I", place(2))
    length = number("<I", text)
    number("<B", text + 4 + length - 1)
    return compression, stop, table[text + 4 : text + 4 + length].decode()


def _camera(description: str) -> tuple[int, tuple[int, int]]:
    """Return the track and the sensor of the first camera."""
    for node in ElementTree.fromstring(description).iterfind("node[@name='outInfo']/node"):
        if node.findtext("attr[@key='typeIdentifier']") == "EVTS":
            width, height = (
                int(node.findtext(f"node[@name='info']/attr[@key='{k}']") or 0) for k in ("sizeX", "sizeY")
            )
            if not fits(width, height):
                raise ValueError(f"a sensor of {width} x {height}")
            return int(node.get("name", "")), (width, height)
    raise ValueError("no event track")


def _packets(content: bytes, start: int, stop: int, track: int, problems: Problems) -> Iterator[memoryview]:
    """Yield the complete packets of this track."""
    view = memoryview(content)
    while start < stop:
        if len(content) - start < PACKET.size:
            problems.found("truncated", "a packet header cut short", start)
            return
        own, length = PACKET.unpack_from(content, start)
        body, start = start + PACKET.size, start + PACKET.size + length
        if start > min(stop, len(content)):
            problems.found("truncated", f"a packet of {length} bytes cut short", body)
            return
        if own == track:
            yield view[body:start]


def _written(compression: int) -> bytes:
    """Return the header of a file with one camera that has the largest sensor."""
    table = pack("<I4s5H2xiiI", 20, b"IOHE", 10, 12, 4, 0, 8, 12, compression, 4)
    text = pack("<I", len(ONE_TRACK)) + ONE_TRACK + b"\0"
    return MAGIC + pack("<I", len(table) + len(text)) + table + text
