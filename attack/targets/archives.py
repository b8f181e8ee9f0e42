"""Tar archives: shards with their index, and archives like those of ImageNet."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from attack.mutations import damaged
from attack.targets import Target
from attack.targets.networks import safetensors_file
from attack.targets.pictures import _picture
from rheobase.data import load
from rheobase.data.archives import members, read
from rheobase.data.sets.folder import listings
from rheobase.data.shards import pack

BLOCK = 512
FIELDS = ((0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155))  # of a header
VALUES = (
    b"\0", b"7" * 11, b"-1", b"\x80" + b"\xff" * 10, b"\xff" * 12, b"x", b"L", b"K", b"g", b"S", b"../../x",
    b"/dev/zero",
)  # fmt: skip


def tar_file(content: bytes, random: Random) -> bytes:
    """Change a value in the header of a file, and correct its checksum."""
    headers = [at for at in range(0, len(content) - BLOCK, BLOCK) if content[at + 257 : at + 262] == b"ustar"]
    if not headers:
        return damaged(content, random)
    at, (offset, size) = random.choice(headers), random.choice(FIELDS)
    header = bytearray(content[at : at + BLOCK])
    header[offset : offset + size] = random.choice(VALUES)[:size].ljust(size, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return content[:at] + bytes(header) + content[at + BLOCK :]


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of these files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def _tar() -> dict[str, bytes]:
    """Return an archive of pictures, one of them with a long name."""
    return {"images.tar": tar_of(dict.fromkeys(("a.jpg", "b" * 150 + ".jpg", "c.jpg"), _picture("JPEG")))}


def _shards() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for part in ("train", "val"):
            for name in ("cat", "dog"):
                (root / part / name).mkdir(parents=True)
                for i in range(2):
                    (root / part / name / f"{i}.png").write_bytes(_picture("PNG"))
        pack(listings(root), root / "shards")
        return {path.name: path.read_bytes() for path in (root / "shards").iterdir()}


def images(folder: Path) -> None:
    """Read all images, as training does."""
    found = load("imagenet", folder, size=8)
    for split in (found.train, found.test):
        split.read(torch.arange(len(split)))


def every_member(folder: Path) -> None:
    """Read all files in the archive."""
    (path,) = folder.iterdir()
    for member in members(path):
        read(member)


TARGETS = (
    Target("shards", _shards, images, {".safetensors": safetensors_file, ".tar": tar_file}, needs=("PIL",)),
    Target("tar", _tar, every_member, {".tar": tar_file}, needs=("PIL",)),
)
