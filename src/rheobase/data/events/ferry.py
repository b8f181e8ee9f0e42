"""Decode event packets of AEDAT 4, DAT and RAW with faery.

faery trusts headers: it allocates the stated sizes, does not check parts, and stops at the first event outside the
sensor. So it never sees the header of the file. It gets a file of checked packets below a header that we write, for a
sensor of any size. If time runs backwards, faery repeats the previous time.
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

EVENT = 48  # bytes of memory per event: in faery, as columns, and while these are joined and checked
ANY = (2**16 - 1, 2**16 - 1)  # a sensor that contains every pixel


def ferried(
    kind: Kind, parts: Iterable[bytes | memoryview], problems: Problems, size: tuple[int, int], start: int = 0
) -> Events:
    """Return the events in a file made of these parts, for a sensor of this size. Add `start` to their times."""
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
            if type(error).__name__ != "PanicException":  # from Rust, not an Exception in Python
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
