"""Data sets: one file each; `load` is the only place that chooses one."""

from pathlib import Path

from rheobase.data import cifar, digits, folder
from rheobase.data.dataset import Dataset, Source, Split

__all__ = ["DATASETS", "Dataset", "Source", "Split", "load"]

DATASETS = ("digits", "cifar10", "cifar100", "imagenet", "folder")
FOLDER = Path("data")  # where files are looked for unless told otherwise


def load(name: str, path: Path | None = None, *, size: int = 0, download: bool = False) -> Dataset:
    """The data set of that name, from the files in `path`, which a `download` goes to.

    `size` is the side images are resized to; small official sets have one of their own.
    """
    path = path or FOLDER
    if name == "digits":
        return digits.load()
    if name in cifar.LAYOUTS:
        return cifar.load(name, path, download)
    if name in ("imagenet", "folder"):
        if size < 1:
            raise ValueError(f"data set '{name}' needs a size for its images; use --set image_size=32, for example")
        return folder.load_large(path, size) if name == "imagenet" else folder.load(path, size)
    raise ValueError(f"unknown data set '{name}'; choose one of {', '.join(DATASETS)}")
