"""Packages that not everybody needs: imported when they are used, by one function whose error names the extra."""

from importlib import import_module
from typing import Any

EXTRAS = {
    "PIL": "images",
    "h5py": "nir",
    "matplotlib": "plots",
    "nir": "nir",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "tensorboard": "tensorboard",
    "triton": "kernels",
}


def need(module: str, what: str) -> Any:
    """The module, imported; where its package is missing, a ValueError says that `what` needs it."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"{what} needs the package {package}; install rheobase[{EXTRAS[package]}]") from None
