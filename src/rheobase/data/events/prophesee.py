"""Prophesee DAT, and RAW in EVT 2.0 and EVT 3.0 (docs.prophesee.ai): text lines that begin with %, then binary words.

The lines state format and sensor; old files leave out the sensor. In DAT, a word is an event. In RAW, words are events,
parts of events, times and triggers. Triggers are skipped.
"""

import re

from rheobase.data.events.ferry import ferried
from rheobase.data.events.stream import LARGEST, Events, OnError, Problems, fits, no_size

MAGIC = b"%"
KINDS = (0x00, 0x0C)  # two codes for contrast changes in DAT
EVENT = 8  # bytes per event in DAT
# A word without meaning, so that the first byte after our header cannot look like another header line.
FILL = {"2.0": b"\0\0\0\xf0", "3.0": b"\0\xe0"}


def decode(content: bytes, source: str, size: tuple[int, int] | None = None, on_error: OnError = "raise") -> Events:
    """Decode a recording in one of these formats."""
    problems = Problems(source, on_error)
    header, start = _header(content, problems)
    size = _sensor(header) or size
    if size is None:
        raise no_size(source, "add it to the header")
    if not fits(*size):
        raise ValueError(f"{source}: expected a sensor of 1 to {LARGEST} pixels in width and height, got {size}")
    began = header.get("t0", "0")
    if not re.fullmatch(r"[0-9]{1,18}", began):
        raise ValueError(f"{source}: expected the start time t0 to be a whole number, got t0 {began[:20]}")
    version = _version(header, source)
    if version is None:
        kind, form = content[start : start + 2] if len(content) >= start + 2 else (0, 0)
        number = header.get("version", "2")
        if kind not in KINDS or form != EVENT or number not in ("1", "2"):
            raise ValueError(f"{source}: no events of DAT 1 or 2 at byte {start}; trigger files are not supported")
        ours, start = f"% Version {number}\n".encode() + bytes((kind, form)), start + 2
    else:
        ours = f"% evt {version}\n".encode() + FILL[version]
    word = EVENT if version is None else len(FILL[version])
    stop = len(content) - (len(content) - start) % word
    if stop < len(content):
        problems.found("truncated", f"only {len(content) - stop} of the {word} bytes of a word", stop)
    body = memoryview(content)[start:stop]
    return ferried("dat" if version is None else "evt", [ours, body], problems, size, int(began))


def _header(content: bytes, problems: Problems) -> tuple[dict[str, str], int]:
    """Return the key, in lower case, and the value of every line, and where the lines end."""
    found: dict[str, str] = {}
    start = 0
    while content.startswith(MAGIC, start):
        end = content.find(b"\n", start)
        line = content[start + 1 : end].decode(errors="replace").strip()
        if end < 0 or "\ufffd" in line or not line.isprintable():  # a word of data can begin like a line
            break
        start = end + 1
        key, _, value = line.partition(" ")
        found[key.lower()] = value.strip()
        if key == "end":
            break
    if not start:
        problems.found("header", "an unterminated header line", 0)
    return found, start


def _sensor(header: dict[str, str]) -> tuple[int, int] | None:
    fields = dict(part.partition("=")[::2] for part in header.get("format", "").split(";"))
    geometry = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", header.get("geometry", ""))
    sides = geometry.groups() if geometry else [(header | fields).get(side, "") for side in ("width", "height")]
    return (int(sides[0]), int(sides[1])) if all(re.fullmatch("[0-9]{1,9}", side) for side in sides) else None


def _version(header: dict[str, str], source: str) -> str | None:
    """Return the version of EVT; None for DAT."""
    name = header.get("format", "").partition(";")[0].upper().removeprefix("EVT") or header.get("evt")
    if name is None:
        return None
    version = name if "." in name else f"{name}.0"
    if version not in FILL:
        raise ValueError(f"{source}: EVT {name} is not supported; convert it to EVT 3.0 with Prophesee's tools")
    return version
