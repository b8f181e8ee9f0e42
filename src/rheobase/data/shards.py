"""Shards: many image files in a few tar archives with an index, fast to copy and readable in any order.

A shard is a plain tar archive. Next to every image is its class number (`cat/tom.jpg`, `cat/tom.cls`), as webdataset
expects. The index is written last; without it, the dataset is incomplete.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from json import JSONDecodeError, dumps, loads
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rheobase.data.archives import Member, Place, Writer, is_text, name_of, read
from rheobase.files import atomic_write

INDEX = "index.safetensors"
SHARD = 2**28  # bytes after which a new shard begins
VERSION = 1
SPLITS = ("train", "val")
DAMAGE = (
    SafetensorError, JSONDecodeError, KeyError, TypeError, IndexError, RuntimeError, UnicodeError,
    AttributeError, OverflowError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """The images of one split: where they are, and their class numbers."""

    places: Sequence[Place]
    labels: Tensor


Listings = tuple[tuple[str, ...], Listing, Listing]  # names of the classes, training images, test images


def pack(
    found: Listings,
    out: Path,
    *,
    held_out: int = 0,
    shard: int = SHARD,
    done: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the images of a dataset as shards to the folder `out` and return the number of shards.

    If `held_out` is n and not 0, every n-th image was taken for testing. `done` is called with the bytes of each image.
    """
    left = [f"{split}-" for split in SPLITS]  # shards without an index: an earlier attempt was stopped
    if out.exists() and not (out.is_dir() and all(path.name.startswith((".", *left)) for path in out.iterdir())):
        raise ValueError(f"{out} is not an empty folder; choose another")
    classes, *listings = found
    for name in (*classes, *(Path(name_of(place)).name for listing in listings for place in listing.places)):
        if not is_text(name):
            raise ValueError(f"shards need names in UTF-8, got '{name}'; rename this file or folder")
    out.mkdir(parents=True, exist_ok=True)
    packed, shards = [], 0
    for split, listing in zip(SPLITS, listings, strict=True):
        places = list(_written(split, classes, listing, out, shard, done))
        packed.append(Listing(places, listing.labels))
        shards += len({place.archive for place in places})
    write_index(out / INDEX, (classes, packed[0], packed[1]), held_out=held_out)
    return shards


def _written(
    split: str, classes: Sequence[str], listing: Listing, out: Path, limit: int, done: Callable[[int], None]
) -> Iterable[Member]:
    numbers, taken = count(), set[str]()
    pairs = iter(zip(listing.places, listing.labels.tolist(), strict=True))
    waiting = next(pairs, None)
    while waiting is not None:
        path = out / f"{split}-{next(numbers):05d}.tar"
        with atomic_write(path) as part, closing(Writer(part)) as writer:
            while waiting is not None and writer.bytes < limit:
                place, label = waiting
                original = PurePosixPath(name_of(place).replace("\\", "/"))
                key = _key(f"{split}/{classes[label]}/{original.stem}", taken)
                content = read(place)
                offset = writer.add(f"{key}{original.suffix}", content)
                writer.add(f"{key}.cls", str(label).encode())
                yield Member(path, f"{split}/{classes[label]}/{original.name}", offset, len(content))
                done(len(content))
                waiting = next(pairs, None)


def _key(name: str, taken: set[str]) -> str:
    """Return a new name. Its last part has no dot, because webdataset would cut it there."""
    folder, _, stem = name.rpartition("/")
    plain = f"{folder}/{stem.replace('.', '_')}"
    key = next(k for k in (plain, *(f"{plain}-{i}" for i in range(2, len(taken) + 3))) if k not in taken)
    taken.add(key)
    return key


def write_index(path: Path, found: Listings, *, held_out: int = 0) -> None:
    """Write where the images are. Paths of archives are relative to the folder of the index."""
    classes, *listings = found
    tensors: dict[str, Tensor] = {}
    archives: list[str] = []
    for split, listing in zip(SPLITS, listings, strict=True):
        places = [place for place in listing.places if isinstance(place, Member)]
        names = [str(place.archive) for place in places]
        archives += sorted(set(names) - set(archives))
        numbers = {name: i for i, name in enumerate(archives)}
        tensors[f"{split}.archive"] = torch.tensor([numbers[name] for name in names])
        tensors[f"{split}.offset"] = torch.tensor([place.offset for place in places])
        tensors[f"{split}.size"] = torch.tensor([place.size for place in places])
        tensors[f"{split}.label"] = listing.labels
        joined = "\0".join(place.name for place in places).encode()
        tensors[f"{split}.names"] = torch.frombuffer(bytearray(joined), dtype=torch.uint8)
    relative = [_relative(Path(archive), path.parent) for archive in archives]
    about = {"about": dumps({"version": VERSION, "classes": classes, "archives": relative, "held_out": held_out})}
    with atomic_write(path) as part:
        part.write_bytes(save(tensors, about))  # not save_file, whose files nobody else may read


def _relative(archive: Path, folder: Path) -> str:
    return archive.name if archive.parent == folder else str(archive.resolve())


def read_index(path: Path) -> Listings:
    """Read what `write_index` wrote. Raise a ValueError if the archives do not match."""
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, Any] = loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        if about["version"] != VERSION:
            raise ValueError(f"{path} comes from another version of rheobase; pack the images again")
        classes = tuple(map(str, about["classes"]))
        archives = [path.parent / str(name) for name in about["archives"]]
        if any("\0" in str(archive) for archive in archives):
            raise IndexError
        train, test = (_listing(split, tensors, archives, len(classes), path) for split in SPLITS)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}; pack the images again") from None
    except DAMAGE:
        raise ValueError(f"{path} is damaged; pack the images again") from None
    return classes, train, test


def _listing(split: str, tensors: dict[str, Tensor], archives: Sequence[Path], classes: int, index: Path) -> Listing:
    number, offset, size, label = (tensors[f"{split}.{name}"].long() for name in ("archive", "offset", "size", "label"))
    ends = torch.tensor([archive.stat().st_size for archive in archives])
    bounds = ((number, len(archives)), (label, classes), (offset, 2**62), (size, 2**62))
    if not all(((values >= 0) & (values < limit)).all() for values, limit in bounds):
        raise IndexError
    if len(beyond := (offset + size > ends[number]).nonzero()):
        raise ValueError(f"{archives[int(number[beyond[0, 0]])]} is shorter than {index} says; copy it again")
    names = tensors[f"{split}.names"].to(torch.uint8).numpy().tobytes().decode().split("\0") if len(label) else []
    if {values.shape for values in (number, offset, size, label)} != {(len(names),)}:
        raise IndexError
    rows = zip(number.tolist(), names, offset.tolist(), size.tolist(), strict=True)
    return Listing([Member(archives[i], name, o, s) for i, name, o, s in rows], label)


def held_out(path: Path) -> int:
    """Return n if every n-th image was taken for testing, or 0 if the split was given, from the index at `path`."""
    try:
        with safe_open(path, "pt") as file:
            number = loads(file.metadata()["about"]).get("held_out")
    except DAMAGE:
        number = None
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError(f"{path} is damaged; pack the images again")
    return number


def pack_with_progress(found: Listings, out: Path, *, held_out: int) -> int:
    """Run `pack` with a progress bar on the terminal."""
    images = sum(len(listing.labels) for listing in found[1:])
    with Progress(console=Console(stderr=True), disable=not Console(stderr=True).is_terminal) as progress:
        task = progress.add_task("packing", total=images)
        return pack(found, out, held_out=held_out, done=lambda _: progress.advance(task))
