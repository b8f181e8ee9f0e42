"""The original archives of ImageNet (ILSVRC 2012). Images are read from them directly, by offset."""

import gzip
import hashlib
import tarfile
from io import BytesIO
from pathlib import Path

import torch

from rheobase import limits
from rheobase.data.archives import Member, members
from rheobase.data.cache import folder as cache_folder
from rheobase.data.shards import Listing, Listings, read_index, write_index
from rheobase.extras import need
from rheobase.files import first_line, open_plain

TRAIN, TEST, KIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
META = "ILSVRC2012_devkit_t12/data/meta.mat"


def is_here(folder: Path) -> bool:
    """Return whether the folder has ImageNet's archives."""
    return (folder / TRAIN).is_file()


def listings(folder: Path) -> Listings:
    """Return the classes, sorted by WordNet ID, and where the images are. The first scan, of minutes, is cached."""
    if missing := [name for name in (TEST, KIT) if not (folder / name).is_file()]:
        raise ValueError(f"{folder} has {TRAIN}, but not {missing[0]}; add that file")
    paths = [folder / name for name in (TRAIN, TEST, KIT)]
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    kept = cache_folder() / f"ilsvrc-{hashlib.sha256(repr(stamps).encode()).hexdigest()[:20]}.safetensors"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_index(kept, _looked_up(*paths))
    return read_index(kept)


def _looked_up(train: Path, test: Path, kit: Path) -> Listings:
    archives = {Path(member.name).stem: member for member in members(train) if member.name.endswith(".tar")}
    classes = tuple(sorted(archives))
    if not classes:
        raise ValueError(f"{train} has no class archives (n01440764.tar and so on); get it again")
    inside: list[tuple[int, Member]] = []
    for label, name in enumerate(classes):
        found = sorted(members(train, archives[name]), key=lambda member: member.name)
        inside += [(label, member._replace(name=f"train/{name}/{member.name}")) for member in found]
    pictures, truth = sorted(members(test), key=lambda member: member.name), _truth(kit)
    if len(truth) != len(pictures) or not set(truth) <= set(classes):
        raise ValueError(f"{kit} does not have the classes of the {len(pictures)} images in {test}; get both again")
    held = [
        (classes.index(name), member._replace(name=f"val/{name}/{member.name}"))
        for name, member in zip(truth, pictures, strict=True)
    ]
    held.sort(key=lambda pair: pair[0])
    return classes, _listing(inside), _listing(held)


def _listing(pairs: list[tuple[int, Member]]) -> Listing:
    return Listing([member for _, member in pairs], torch.tensor([label for label, _ in pairs]))


def _truth(kit: Path) -> list[str]:
    """Return the class of every validation image, sorted by image name."""
    scipy = need("scipy.io", "reading the classes of ImageNet's validation images")
    try:
        content = _unpacked(kit)
        with tarfile.open(fileobj=BytesIO(content), mode="r:") as tar:
            numbers, meta = (tar.extractfile(name) for name in (TRUTH, META))
            assert numbers is not None
            assert meta is not None
            rows = scipy.loadmat(BytesIO(meta.read()), squeeze_me=True)["synsets"]
            names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
            return [names[int(line)] for line in numbers.read().split()]
    except Exception as error:  # damage makes the parsers fail in many ways
        raise ValueError(f"{kit}: not the ILSVRC 2012 development kit ({first_line(error)}); get it again") from None


def _unpacked(path: Path) -> bytes:
    """Return the content of a gzip file, if it is within the memory limit."""
    size = path.stat().st_size
    most = limits.allowed(size) // 4  # parsing needs several times as much
    with open_plain(path) as file, gzip.open(file) as packed:
        content = packed.read(most + 1)
    limits.check(4 * len(content), size, "its content")
    return content
