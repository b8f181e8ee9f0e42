"""Packages that not everybody needs: imported when they are used, by one function whose error names the extra."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

EXTRAS = {
    "PIL": "images",
    "faery": "events",
    "h5py": "nir",
    "matplotlib": "plots",
    "nir": "nir",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "tensorboard": "tensorboard",
    "triton": "kernels",
}


def installed(package: str) -> bool:
    """Whether the package is there; it is not imported."""
    return find_spec(package) is not None


def need(module: str, what: str) -> Any:
    """The module, imported; where its package is missing, a ValueError says that `what` needs it."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"{what} needs the package {package}; install rheobase[{EXTRAS[package]}]") from None
