from struct import pack

import pytest

from rheobase import limits
from rheobase.data.events import aedat4, decode
from rheobase.data.events.unpacking import largest

BLOCK = 2**17


def frame(sizes: list[int], stated: int | None = None, form: str = "<Q", checksum: bool = False) -> bytes:
    """A frame of Zstandard with blocks of one repeated byte."""
    kinds = {"<H": 1, "<I": 2, "<Q": 3}
    flags = (0 if stated is None else kinds[form] << 6 | 1 << 5) | checksum << 2
    head = b"\x28\xb5\x2f\xfd" + bytes([flags])
    head += b"\x58" if stated is None else pack(form, stated)
    blocks = [pack("<I", (i == len(sizes) - 1) | 1 << 1 | size << 3)[:3] + b"a" for i, size in enumerate(sizes)]
    return head + b"".join(blocks) + (b"sums" if checksum else b"")


def lz4(content: list[bytes], *, block: int = 4, flags: int = 0x60) -> bytes:
    """A frame of LZ4 with blocks that are stored as they are."""
    head = b"\x04\x22\x4d\x18" + bytes([flags, block << 4]) + b"\0" * (8 * (flags >> 3 & 1)) + b"h"
    sums = b"sums" if flags >> 4 & 1 else b""
    blocks = b"".join(pack("<I", len(part) | 1 << 31) + part + sums for part in content)
    return head + blocks + pack("<I", 0) + (b"sums" if flags >> 2 & 1 else b"")


@pytest.mark.parametrize(
    ("packet", "compression", "bound"),
    [
        (bytes(100), 0, 100),
        (bytes(100), 1, 25_500),
        (bytes(100), 2, 25_500),
        (lz4([bytes(900)] * 3), 1, 3 * 2**16),
        (lz4([bytes(900)] * 3, flags=0x7C), 2, 3 * 2**16),
        (lz4([bytes(99_000)] * 2, block=7), 1, 2 * 2**22),
        (lz4([bytes(9)] * 3), 1, 255 * (7 + 3 * 13 + 4)),
        (lz4([bytes(900)])[:-1], 1, 255 * (7 + 904 + 3)),
        (lz4([bytes(900)]) * 2, 1, 2 * 255 * (7 + 904 + 4)),
        (lz4([bytes(900)], block=3), 1, 255 * (7 + 904 + 4)),
        (frame([5]), 3, BLOCK),
        (frame([5, 6, 7], checksum=True), 4, 3 * BLOCK),
        (frame([5, 6]) + frame([7]), 3, 3 * BLOCK),
        (frame([5, 6], checksum=True) + frame([7]), 3, 3 * BLOCK),
        (frame([5], 1000), 3, 1256),
        (frame([5], 1000, "<H"), 3, 1256),
        (frame([5], 70_000, "<I"), 3, 70_256),
        (frame([5, 6])[:-1], 3, 2 * BLOCK),
        (frame([5])[:4], 3, 0),
        (frame([5], 9)[:7], 3, 0),
        (b"", 3, 0),
        (b"something else", 3, 0),
    ],
)
def test_bounds_by_hand(packet: bytes, compression: int, bound: int) -> None:
    assert largest(packet, compression) == bound


def test_a_small_packet_that_would_fill_the_memory_is_refused() -> None:
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    body = frame([BLOCK] * 8000)
    content = aedat4._written(3) + aedat4.PACKET.pack(0, len(body)) + body
    with pytest.raises(ValueError, match=r"^a\.aedat4: a packet would take 1000 MiB of memory"):
        decode(content, "a.aedat4", on_error="skip")


def test_a_recording_in_one_large_packet_is_not_refused() -> None:
    """LZ4 could make 255 bytes of each of its bytes; its frame says that it does not."""
    body = lz4([bytes(2**16)] * 40)
    limits.check(largest(body, 1), len(body), "a packet")
    with pytest.raises(ValueError, match="a packet would take"):
        limits.check(255 * len(body), len(body), "a packet")


def test_events_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of EVT 3 that stand for twelve events each."""
    pytest.importorskip("faery", reason="needs faery: install rheobase[events]")
    words = [0x8001, 0x6002, 0x0005, 0x3800] + [0x4FFF, 0x3800] * 5000
    content = b"% evt 3.0\n% geometry 40x6\n" + b"".join(pack("<H", word) for word in words)
    assert len(decode(content, "d.raw", on_error="skip")) == 60_000
    monkeypatch.setenv("RHEOBASE_FILE_MEMORY", "1")
    with pytest.raises(ValueError, match=r"^d\.raw: its events would take \d MiB of memory"):
        decode(content, "d.raw", on_error="skip")
