"""File formats of deployed networks: one module each, and a new module is a new format. A module has

SUFFIX                             of its files
write(network, path, input_shape)  for images [C, H, W] of that shape; further parameters are its own options
load(path)                         what is in a file: a `Network`, or something that is called like one
"""

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any


def names() -> list[str]:
    """Of all formats; nothing is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def module(name: str) -> Any:
    """The module of the format of that name."""
    return import_module(f"{__name__}.{name}")


def of_file(path: Path) -> Any:
    """The module of the format that a file has, by its suffix."""
    known = {found.SUFFIX: found for found in map(module, names())}
    if path.suffix not in known:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(known)}")
    return known[path.suffix]
