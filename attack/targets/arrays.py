"""NumPy files, and idx files compressed with gzip."""

import gzip
import io
import zipfile
from functools import partial
from random import Random
from struct import pack

import numpy as np

from attack.mutations import damaged
from attack.targets import Target
from rheobase.data import load
from rheobase.data.events import read as read_recording
from rheobase.data.info import DataInfo
from rheobase.data.pictures import read
from rheobase.data.sets.nmnist import read_arrays
from tests.data import recordings

INFO = DataInfo(name="digits", classes=("a", "b"), channels=1, size=8, mean=(0.0,), std=(1.0,))
SHAPES = (
    "()", "(0,)", "(8,)", "(1, 8, 8)", "(-1,)", "(2**20,)", "(1048576, 1048576)", "(4294967296,)", "8", "(1.5,)",
    "(99999999999999999999999,)", "('a',)", "(True,)", "(0, 99999999999999999999)",
)  # fmt: skip
TYPES = (
    "|u1", "<f4", "<f8", ">i2", "<f2", "|b1", "|O", "<U9", "|V0", "|V99999999", "<c16", "<M8[s]", "x", "", "<i4,<f8",
    "|S0",
)  # fmt: skip


def npy_file(content: bytes, random: Random) -> bytes:
    """Replace the header by another of the right length."""
    length = content[8] + 256 * content[9]
    body = content[10 + length :]
    shape, kind = random.choice((*SHAPES, "(1, 8, 8)")), random.choice((*TYPES, "<f4"))
    header = f"{{'descr': '{kind}', 'fortran_order': {random.choice(('True', 'False', '2'))}, 'shape': {shape}, }}"
    chosen = random.choice((header, header, header, "(" * 5000, "{" + header * 3, header[:-9]))
    text = chosen.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + random.choice((b"\1\0", b"\2\0", b"\3\0", b"\1\0")) + pack("<H", len(text)) + text + body


def npz_file(content: bytes, random: Random) -> bytes:
    """Change the content or the array in one file of the archive, or make it a bomb. Checksums are correct."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(sorted(members))
    if random.random() < 0.1:
        file = io.BytesIO()
        np.save(file, np.zeros(random.choice((10**6, 5 * 10**7)), np.uint8))
        members[name] = file.getvalue()
    else:
        members[name] = random.choice((npy_file, damaged))(members[name], random)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return file.getvalue()


def gzip_file(content: bytes, random: Random) -> bytes:
    """Change bytes and compress them again, or return a bomb."""
    if random.random() < 0.05:
        zeros = gzip.compress(bytes(2**20), 1)
        return zeros * random.choice((10, 2000))
    return gzip.compress(damaged(gzip.decompress(content), random), 1)


def _npy() -> dict[str, bytes]:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).random((1, 8, 8), np.float32))
    return {"image.npy": file.getvalue()}


def _idx() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    found = {}
    for part, n in (("train", 7), ("t10k", 5)):
        images = pack(">4B3I", 0, 0, 8, 3, n, 28, 28) + random.integers(0, 256, n * 784, np.uint8).tobytes()
        labels = pack(">4BI", 0, 0, 8, 1, n) + random.integers(0, 10, n, np.uint8).tobytes()
        found[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images, mtime=0)
        found[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels, mtime=0)
    return found


def _many() -> dict[str, bytes]:
    events = recordings.recording(3, 90, 34, 34)
    file = io.BytesIO()
    columns = {name: getattr(events, name) for name in "txyp"}
    np.savez_compressed(file, **columns, offsets=[0, 40, 90], labels=[3, 7], is_test=[False, True])
    return {"many.npz": file.getvalue()}


TARGETS = (
    Target("npy", _npy, lambda folder: read(folder / "image.npy", INFO), {".npy": npy_file}),
    Target(
        "npz recording",
        lambda: {"events.npz": recordings.npz(recordings.recording(1, 300, 34, 34))},
        lambda folder: read_recording(folder / "events.npz", on_error="skip"),
        {".npz": npz_file},
    ),
    Target("npz of many", _many, lambda folder: read_arrays(folder / "many.npz"), {".npz": npz_file}),
    Target("MNIST", _idx, partial(load, "mnist"), {".gz": gzip_file}),
)
