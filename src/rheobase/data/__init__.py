"""Data sets: one file each; `load` is the only place that chooses one."""

from pathlib import Path
from typing import Any

from rheobase.data.dataset import Dataset, Source, Split
from rheobase.data.sets import cifar, digits, dvscifar10, dvsgesture, folder, mnist, nmnist, simulated

__all__ = ["DATASETS", "Dataset", "Source", "Split", "load"]

SIMULATED = ("digits-dvs", "dvscifar10-simulated")  # recordings
EVENTS = ("nmnist", "dvsgesture", "dvscifar10", *SIMULATED)
DATASETS = ("digits", "cifar10", "cifar100", "mnist", "fashion-mnist", "imagenet", "folder", *EVENTS)
FOLDER = Path("data")  # where files are looked for unless told otherwise


def load(
    name: str,
    path: Path | str | None = None,
    *,
    size: int = 0,
    timesteps: int = 0,
    download: bool = False,
    **options: Any,
) -> Dataset:
    """The data set of that name, from the files in `path`, which a `download` goes to.

    `size` is the side images are resized to; small official sets have one of their own. Recordings of event cameras
    become `timesteps` slices; `options` change how, as in `eventset.Slicing`.
    """
    path = Path(path or FOLDER)
    if name in EVENTS:
        return _events(name, path, download, size=size, timesteps=timesteps, **options)
    if options:
        raise ValueError(f"data set '{name}' has no option {min(options)}; those are for {', '.join(EVENTS)}")
    if name in ("digits", *cifar.LAYOUTS, *mnist.CLASSES):
        found = _images(name, path, download)
        if size not in (0, found.size):
            raise ValueError(f"data set '{name}' has images of {found.size} x {found.size}, not {size}; leave size out")
        return found
    if name in ("imagenet", "folder"):
        if size < 1:
            raise ValueError(
                f"data set '{name}' needs a size for its images; give one, 32 for example (train: --set image_size=32)"
            )
        return folder.load_large(path, size) if name == "imagenet" else folder.load(path, size)
    raise ValueError(f"unknown data set '{name}'; choose one of {', '.join(DATASETS)}")


def _images(name: str, path: Path, download: bool) -> Dataset:
    if name == "digits":
        return digits.load()
    return cifar.load(name, path, download) if name in cifar.LAYOUTS else mnist.load(name, path)


def _events(name: str, path: Path, download: bool, **options: Any) -> Dataset:
    if name == "digits-dvs":
        return simulated.load_digits(**options)
    if name == "dvscifar10-simulated":
        return simulated.load_cifar10(path, download=download, **options)
    if name == "nmnist":
        return nmnist.load(path, **options)
    return dvsgesture.load(path, **options) if name == "dvsgesture" else dvscifar10.load(path, **options)
