"""Folders of official datasets, and the files prepared from them. Every file is damaged, including lists and tables."""

import gzip
import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch

from attack.mutations import damaged, json_text
from attack.targets import Target
from attack.targets.archives import images, tar_file, tar_of
from attack.targets.pictures import _picture
from rheobase.data import cache as prepared
from rheobase.data import ilsvrc, load
from rheobase.data.sets import cifar
from rheobase.extras import need
from tests.data import recordings
from tests.data.test_cifar import write as write_cifar

CACHE = "cache"  # a folder of prepared slices beside the data; each case has its own
FRAMES = torch.arange(5 * 3 * 2 * 4 * 4, dtype=torch.uint8).view(5, 3, 2, 4, 4)


# ---- CIFAR: files without the official checksums are refused, so the checksums are replaced by those of small files


@cache
def _cifar(form: int) -> dict[str, bytes]:
    """Return CIFAR-10 and CIFAR-100, as binary files or as pickles."""
    with TemporaryDirectory() as place:
        for name, layouts in cifar.LAYOUTS.items():
            for first in (True, False):
                write_cifar(Path(place) / layouts[form].folder, layouts[form], name, first)
        return {str(p.relative_to(place)): p.read_bytes() for p in sorted(Path(place).rglob("*")) if p.is_file()}


def _with_sums(form: int, files: Mapping[str, bytes]) -> dict[str, tuple[cifar.Layout, ...]]:
    """Return the layouts with the checksums of these files."""

    def md5(layout: cifar.Layout, name: str) -> str:
        return hashlib.md5(files[f"{layout.folder}/{name}"], usedforsecurity=False).hexdigest()

    return {
        name: (
            replace(
                layouts[form],
                train={file: md5(layouts[form], file) for file in layouts[form].train},
                test={file: md5(layouts[form], file) for file in layouts[form].test},
                names_md5=md5(layouts[form], layouts[form].names),
            ),
        )
        for name, layouts in cifar.LAYOUTS.items()
    }


def both_cifars(form: int, folder: Path, *, sums_agree: bool = False) -> None:
    """Load CIFAR-10 and CIFAR-100. If `sums_agree`, accept the checksums of damaged files."""
    files = _cifar(form)
    if sums_agree:
        files = {name: (folder / name).read_bytes() for name in files}
    with patch.dict(cifar.LAYOUTS, _with_sums(form, files)):
        for name in cifar.LAYOUTS:
            load(name, folder)


# ---- gestures: recordings, tables of labels, lists


def table(content: bytes, random: Random) -> bytes:
    """Change a value in a row, or add a row."""
    rows = [line.split(b",") for line in content.splitlines()]
    row = random.choice(rows)
    values = (
        b"",
        b"0",
        b"-1",
        b"12",
        b"1e9",
        b"nan",
        b"9" * 30,
        b"x" * 200_000,
        b'"',
        "\N{ARABIC-INDIC DIGIT ONE}".encode(),
    )
    row[random.randrange(len(row))] = random.choice(values)
    if random.random() < 0.3:
        rows.insert(random.randrange(len(rows) + 1), random.choice(rows) * random.choice((1, 2)))
    return b"\n".join(b",".join(row) for row in rows) + b"\n"


def _gestures() -> dict[str, bytes]:
    found = {}
    for user, part in (("user01", "train"), ("user24", "test")):
        found[f"{user}.aedat"] = recordings.aedat_3(recordings.recording(5, 90))
        found[f"{user}_labels.csv"] = b"class,startTime_usec,endTime_usec\n4,0,50000\n11,60000,90000\n"
        found[f"trials_to_{part}.txt"] = f"{user}.aedat\n".encode()
    return found


def gestures(folder: Path) -> None:
    """Load DVS-Gesture and read all frames."""
    with patch.dict(os.environ, {"RHEOBASE_CACHE": str(folder / CACHE)}):
        found = load("dvsgesture", folder, size=8, timesteps=3)
    for split in (found.train, found.test):
        split.read(torch.arange(len(split)))


# ---- ImageNet's archives


def packed_tar(content: bytes, random: Random) -> bytes:
    """Change a header or bytes in the archive, and compress it again."""
    return gzip.compress(random.choice((tar_file, damaged))(gzip.decompress(content), random), 1)


def _ilsvrc() -> dict[str, bytes]:
    kind = np.dtype([("ILSVRC2012_ID", object), ("WNID", object)])
    meta = io.BytesIO()
    table = {"synsets": np.array([(1, "n02"), (2, "n01")], kind)}
    need("scipy.io", "making the archives of ImageNet").savemat(meta, table)
    inner = {f"{name}.tar": tar_of({f"{name}_0.JPEG": _picture("JPEG")}) for name in ("n01", "n02")}
    kit = {ilsvrc.META: meta.getvalue(), ilsvrc.TRUTH: b"2\n1\n"}
    return {
        ilsvrc.TRAIN: tar_of(inner),
        ilsvrc.TEST: tar_of({f"ILSVRC2012_val_{i}.JPEG": _picture("JPEG") for i in range(2)}),
        ilsvrc.KIT: gzip.compress(tar_of(kit), mtime=0),
    }


def imagenet(folder: Path) -> None:
    """Load ImageNet from its archives and read all images."""
    with patch.dict(os.environ, {"RHEOBASE_CACHE": str(folder / CACHE)}):
        images(folder)


# ---- prepared slices: damaged ones are made again, and never used


def slices(folder: Path) -> None:
    """Read prepared slices, and check that damaged ones are not used."""
    with patch.dict(os.environ, {"RHEOBASE_CACHE": str(folder)}):
        job = partial(prepared.Recordings, FRAMES, [7] * 5, [0.5] * 5)
        found = prepared.prepared("attacked", tuple(FRAMES.shape), {}, (), [job])
    if not torch.equal(found.frames, FRAMES) or found.events != [7] * 5:
        raise RuntimeError("damaged slices were used")


def _slices() -> Mapping[str, bytes]:
    with TemporaryDirectory() as place:
        slices(Path(place))
        return {str(p.relative_to(place)): p.read_bytes() for p in Path(place).rglob("*") if p.is_file()}


TARGETS = (
    Target("CIFAR, binary", partial(_cifar, 0), partial(both_cifars, 0)),
    Target("CIFAR, binary, sums agree", partial(_cifar, 0), partial(both_cifars, 0, sums_agree=True)),
    Target("CIFAR, pickles", partial(_cifar, 1), partial(both_cifars, 1)),
    Target("DVS-Gesture", _gestures, gestures, {".csv": table}),
    Target("prepared slices", _slices, slices, {".json": json_text}),
    Target("ImageNet's archives", _ilsvrc, imagenet, {".tar": tar_file, ".gz": packed_tar}, needs=("scipy", "PIL")),
)
