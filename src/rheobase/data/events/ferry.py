"""What faery reads: event packets of AEDAT 4, DAT and RAW, ferried there and back as columns.

It believes what headers say: sizes are allocated as stated, parts are not checked, and the first event outside the
sensor ends it. So it never sees one: it is given a file of checked packets below a header that we wrote, for a sensor
of any size. It moves a time that runs backwards to the one before it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rheobase import limits
from rheobase.data.events.stream import Events, Problems, checked
from rheobase.extras import need

Kind = Literal["aedat", "dat", "evt"]
Packet = NDArray[Any]

EVENT = 48  # bytes of memory: as faery has it, as columns, and while these are joined and checked
ANY = (2**16 - 1, 2**16 - 1)  # a sensor that has every pixel


def ferried(
    kind: Kind, parts: Iterable[bytes | memoryview], problems: Problems, size: tuple[int, int], start: int = 0
) -> Events:
    """The events in a file of these parts, of a sensor of this size; `start` is the time at which theirs is 0."""
    faery = need("faery", f"reading {problems.source}")
    packets: list[Packet] = []
    events = 0
    with TemporaryDirectory(prefix="rheobase-") as folder:
        path = Path(folder) / "recording"
        with open(path, "wb") as file:
            file.writelines(parts)
        written = path.stat().st_size
        try:
            for packet in _packets(faery, kind, path):
                packets.append(packet)
                events += len(packet)
                limits.check(EVENT * events, written, f"{problems.source}: its events")
        except RuntimeError as error:
            _tell(problems, error, packets)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, which is no Exception in Python
                raise
            _tell(problems, error, packets)
    problems.unit = "event"
    return checked(
        problems,
        _column(packets, "t", np.uint64).astype(np.int64) + start,
        _column(packets, "x", np.uint16),
        _column(packets, "y", np.uint16),
        _column(packets, "payload" if kind == "dat" else "on", np.uint8) & 1,
        size,
        int,
    )


def _packets(faery: Any, kind: Kind, path: Path) -> Iterator[Packet]:
    if kind == "aedat":
        with faery.aedat.Decoder(path) as decoder:
            yield from (packet for _, packet in decoder)
    elif kind == "dat":
        with faery.dat.Decoder(path, ANY, None) as decoder:
            yield from decoder
    else:
        with faery.evt.Decoder(path, ANY, None) as decoder:
            yield from (packet["events"] for packet in decoder if "events" in packet)


def _tell(problems: Problems, error: BaseException, packets: list[Packet]) -> None:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    problems.unit = "event"
    problems.found("packet", f"a packet that faery cannot read ({reason})", sum(map(len, packets)))


def _column(packets: list[Packet], name: str, kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *(packet[name] for packet in packets)], dtype=kind)
