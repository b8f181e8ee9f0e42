"""Packages that not everybody needs: imported when they are used, by one function whose error names the extra."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    "scipy": "imagenet",
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


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Around imports that take seconds: Ctrl-C ends the process at once, where Python could forget its exception."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
