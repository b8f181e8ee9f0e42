"""Pictures of every supported format."""

import io
import zlib
from pathlib import Path
from random import Random
from struct import pack, unpack_from

import numpy as np

from attack.mutations import NUMBERS, damaged
from attack.targets import Target
from rheobase.data.info import DataInfo
from rheobase.data.pictures import read
from rheobase.extras import need

INFO = DataInfo(name="folder", classes=("a", "b"), channels=3, size=8, mean=(0.0,) * 3, std=(1.0,) * 3)
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(x) run showpage\n"


def png_file(content: bytes, random: Random) -> bytes:
    """Change a chunk or the sizes. Lengths and checksums are correct."""
    chunks, at = [], 8
    while at + 8 <= len(content):
        length, kind = unpack_from(">I4s", content, at)
        chunks.append((kind, content[at + 8 : at + 8 + length]))
        at += 12 + length
    place = random.randrange(len(chunks))
    kind, body = chunks[place]
    what = random.random()
    if what < 0.3 and chunks[0][0] == b"IHDR":
        sizes = [random.choice((1, 8, 1000, 20_000, 60_000, *NUMBERS)) % 2**32 for _ in range(2)]
        chunks[0] = b"IHDR", pack(">II", *sizes) + chunks[0][1][8:]
    elif what < 0.4:
        chunks.insert(place, (random.choice((b"zTXt", b"iTXt", b"iCCP")), b"a\0\0" + zlib.compress(bytes(10**7), 1)))
    elif what < 0.5:
        chunks.insert(place, (kind, body))
    elif kind == b"IDAT" and what < 0.7:
        chunks[place] = kind, zlib.compress(bytes(random.choice((0, 9, 10**7))), 1)
    else:
        chunks[place] = kind, damaged(body, random)
    parts = [pack(">I4s", len(b), k) + b + pack(">I", zlib.crc32(k + b)) for k, b in chunks]
    return content[:8] + b"".join(parts)


def other_file(content: bytes, random: Random) -> bytes:
    """Replace the content by another format, or damage bytes."""
    return POSTSCRIPT if random.random() < 0.05 else damaged(content, random)


def _picture(kind: str, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (23, 31, 3), np.uint8)
    file = io.BytesIO()
    need("PIL.Image", "making pictures").fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def look(folder: Path) -> None:
    """Read the picture, as `predict` does."""
    (path,) = folder.iterdir()
    read(path, INFO)


KINDS = (
    ("BMP", "bmp"), ("GIF", "gif"), ("JPEG", "jpg"), ("PPM", "ppm"), ("TIFF", "tif"), ("WEBP", "webp"),
)  # fmt: skip
TARGETS = (
    Target("PNG", lambda: {"a.png": _picture("PNG", "P")}, look, {".png": png_file}, needs=("PIL",)),
    *(
        Target(
            kind,
            lambda kind=kind, suffix=suffix: {f"a.{suffix}": _picture(kind)},  # type: ignore[misc]
            look,
            {f".{suffix}": other_file},
            needs=("PIL",),
        )
        for kind, suffix in KINDS
    ),
)
