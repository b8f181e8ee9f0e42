"""Recordings of event cameras in every format: read them without the damaged parts, summarise and slice them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from struct import pack, unpack_from
from tempfile import TemporaryDirectory

from attack.mutations import Mutation, damaged
from attack.targets import Target
from rheobase.data.events import aedat4, read
from rheobase.data.events.summary import summary
from rheobase.data.eventset import Slicing, own_recording
from tests.data import recordings

SLICING = Slicing(window=0, timesteps=3, size=8, sensor="34x34")


def look(folder: Path) -> None:
    """Read the recording, as `recording` and `predict` do."""
    (path,) = folder.iterdir()
    summary(read(path, size=(34, 34), on_error="skip"), 10_000)
    own_recording(path, SLICING)


def packets(content: bytes, random: Random) -> bytes:
    """Change a packet of AEDAT 4, or make it a Zstandard bomb. Its length is correct."""
    start = len(aedat4.MAGIC) + 4 + unpack_from("<I", content, len(aedat4.MAGIC))[0]
    found, at = [], start
    while at + 8 <= len(content):
        track, length = unpack_from("<iI", content, at)
        found.append((track, content[at + 8 : at + 8 + length]))
        at += 8 + length
    place = random.randrange(len(found))
    track, body = found[place]
    bomb = b"\x28\xb5\x2f\xfd\0\x58" + (pack("<I", 1 << 1 | 2**17 << 3)[:3] + b"\0") * random.choice((10, 20_000))
    found[place] = track, bomb if random.random() < 0.1 else damaged(body, random)
    return content[:start] + b"".join(pack("<iI", track, len(body)) + body for track, body in found)


def _by_faery(name: str, **options: object) -> Callable[[], Mapping[str, bytes]]:
    def made() -> dict[str, bytes]:
        with TemporaryDirectory() as folder:
            path = recordings.by_faery(recordings.recording(8, 400, 34, 34), Path(folder) / name, **options)
            return {name: path.read_bytes()}

    return made


def _target(
    name: str, file: str, write: Callable[..., bytes], *needs: str, structure: Mapping[str, Mutation] | None = None
) -> Target:
    events = recordings.recording(len(name), 200, 34, 34)
    return Target(name, lambda: {file: write(events)}, look, structure or {}, needs=needs)


TARGETS = (
    _target("AEDAT 2", "a.aedat", recordings.aedat_2),
    _target("AEDAT 3", "a.aedat", recordings.aedat_3),
    _target("N-MNIST", "a.bin", recordings.nmnist),
    _target("CSV", "a.csv", recordings.csv),
    _target("AEDAT 4", "a.aedat4", recordings.aedat_4, "faery"),
    _target("DAT", "a.dat", recordings.dat, "faery"),
    _target("EVT 2", "a.raw", recordings.evt_2, "faery"),
    _target("EVT 3", "a.raw", recordings.evt_3, "faery"),
    Target("AEDAT 4, LZ4", _by_faery("a.aedat4"), look, {".aedat4": packets}, needs=("faery",)),
    Target(
        "AEDAT 4, Zstandard",
        _by_faery("a.aedat4", compression=("zstd", 3)),
        look,
        {".aedat4": packets},
        needs=("faery",),
    ),
)
