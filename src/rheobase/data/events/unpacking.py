"""Limits for the unpacked size of compressed AEDAT 4 packets, from their headers alone. Nothing is unpacked."""

from struct import error, unpack_from

LZ4, ZSTD = (1, 2), (3, 4)
LZ4_MAGIC = b"\x04\x22\x4d\x18"
LARGEST_RATIO = 255  # of LZ4
MAGIC = b"\x28\xb5\x2f\xfd"  # of a Zstandard frame (RFC 8878)
BLOCK = 2**17  # largest block in bytes
CONTENT_SIZES = ("", "<H", "<I", "<Q")
DICTIONARY = (0, 1, 2, 4)


def largest(packet: bytes | memoryview, compression: int) -> int:
    """Return an upper limit, in bytes, for the unpacked size of a packet."""
    if compression in LZ4:
        return _lz4(bytes(packet))
    return _frames(bytes(packet)) if compression in ZSTD else len(packet)


def _lz4(packet: bytes) -> int:
    """Return the limit from the block size that an LZ4 frame states. Other packets get the largest ratio."""
    most = LARGEST_RATIO * len(packet)
    if not packet.startswith(LZ4_MAGIC) or len(packet) < 7 or packet[5] >> 4 & 7 < 4:
        return most
    flags, block = packet[4], 1 << 2 * (packet[5] >> 4 & 7) + 8  # 64 KiB to 4 MiB
    at, blocks = 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1), 0
    while at + 4 <= len(packet):
        size = int.from_bytes(packet[at : at + 4], "little") & 0x7FFFFFFF
        at += 4
        if not size:  # the end, then a checksum
            return min(most, blocks * block) if at + 4 * (flags >> 2 & 1) == len(packet) else most
        at, blocks = at + size + 4 * (flags >> 4 & 1), blocks + 1
    return most


def _frames(packet: bytes) -> int:
    """Return the sizes that Zstandard frames state, or the limit of their blocks. Nothing else gets unpacked."""
    total = start = 0
    try:
        while packet.startswith(MAGIC, start):
            flags = packet[start + 4]
            size, single = flags >> 6, flags >> 5 & 1
            at = start + 5 + (not single) + DICTIONARY[flags & 3]
            stated: int | None = None
            if size:
                (stated,) = unpack_from(CONTENT_SIZES[size], packet, at)
                at += 1 << size
            elif single:
                stated, at = packet[at], at + 1
            start, blocks = _after_blocks(packet, at)
            start += 4 * (flags >> 2 & 1)  # a checksum
            total += blocks * BLOCK if stated is None else stated + 256
    except (IndexError, error):
        pass  # a truncated header
    return total


def _after_blocks(packet: bytes, at: int) -> tuple[int, int]:
    """Return the end of the frame whose first block is at `at`, and the number of its blocks."""
    blocks, last = 0, False
    while not last and at + 3 <= len(packet):
        header = int.from_bytes(packet[at : at + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
        blocks += 1
    return at, blocks
