"""File formats of deployed networks. Each module here is a format, and adding a module adds a format. A module has

SUFFIX                             the suffix of its files
write(network, path, input_shape)  writes a file for images [C, H, W]; further parameters are options of the format
load(path)                         returns a `Network`, or an object that is called like one
"""

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any


def names() -> list[str]:
    """Return the names of all formats, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def module(name: str) -> Any:
    """Return the module of the format with this name."""
    return import_module(f"{__name__}.{name}")


def of_file(path: Path) -> Any:
    """Return the module of the format of a file, by its suffix."""
    known = {found.SUFFIX: found for found in map(module, names())}
    if path.suffix not in known:
        raise ValueError(f"{path}: expected a file that ends in one of {', '.join(known)}")
    return known[path.suffix]
