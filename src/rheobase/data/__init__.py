"""Datasets. Each has a file in `sets` that registers its loader. Only `load` calls the loaders."""

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rheobase import plugins
from rheobase.data import sets
from rheobase.data.dataset import Dataset, Source, Split
from rheobase.data.expectation import EXPECTED, Loader, expecting, refuse_contradiction
from rheobase.data.info import DataInfo

__all__ = ["DataInfo", "Dataset", "Source", "Split", "expected", "expecting", "load"]

FOLDER = Path("data")  # the default folder for files

for _module in pkgutil.iter_modules(sets.__path__):
    import_module(f"{sets.__name__}.{_module.name}")


def load(
    name: str | Loader,
    path: Path | str | None = None,
    *,
    size: int = 0,
    timesteps: int = 0,
    download: bool = False,
    **options: Any,
) -> Dataset:
    """Load a dataset by name, or with your own loader, from the files in `path`. A `download` goes there too.

    Images are resized to a side of `size` pixels; small official datasets have a fixed size. Event-camera recordings
    are cut into `timesteps` slices; `options` change how (see `eventset.Slicing`). A loader gets only the arguments
    that it takes.
    """
    loader, name = _loader(name)
    takes = inspect.signature(loader).parameters
    given = {"size": size, "timesteps": timesteps, "download": download}
    accepted = {key: value for key, value in given.items() if value and key in takes}
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    if not anything and (unknown := options.keys() - takes.keys()):
        others = ", ".join(list(takes)[1:])
        raise ValueError(f"dataset '{name}' has no option {min(unknown)}; it takes {others or 'none'}")
    found = loader(Path(path or FOLDER), **accepted, **options)
    if not isinstance(found, Dataset):
        raise ValueError(
            f"the loader of dataset '{name}' returned a {type(found).__name__}, not a Dataset; make one with Dataset.of"
        )
    _check_size(found.info, name, size)
    refuse_contradiction(loader, name, found.info, size)
    if 0 < found.info.timesteps < timesteps:
        raise ValueError(
            f"dataset '{name}' has recordings of {found.info.timesteps} timesteps, not {timesteps}; "
            f"use timesteps={found.info.timesteps}"
        )
    return found


def expected(name: str | Loader, *, size: int = 0, timesteps: int = 0) -> DataInfo:
    """Return what is known of a dataset without its files: all but the normalisation and the content."""
    loader, name = _loader(name)
    if loader not in EXPECTED:
        raise ValueError(
            f"the shape of dataset '{name}' is unknown without its files; give them with --data, "
            "or decorate its loader with @expecting"
        )
    info, takes = replace(EXPECTED[loader], name=name), inspect.signature(loader).parameters
    if size and "size" in takes:
        info = replace(info, size=size)
    if timesteps and info.timesteps:
        info = replace(info, timesteps=timesteps)
    _check_size(info, name, size)
    return info


def _loader(name: str | Loader) -> tuple[Loader, str]:
    if isinstance(name, str):
        return plugins.dataset.get(name), name
    return name, getattr(name, "__name__", type(name).__name__)


def _check_size(info: DataInfo, name: str, size: int) -> None:
    if size not in (0, info.size):
        raise ValueError(f"dataset '{name}' has images of {info.size} x {info.size}, not {size}; leave out the size")
