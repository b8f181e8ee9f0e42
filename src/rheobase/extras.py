"""Optional packages. `need` imports them on first use; its error names the extra to install."""

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
    """Return whether the package is installed, without importing it."""
    return find_spec(package) is not None


def need(module: str, what: str) -> Any:
    """Import and return a module. If its package is missing, raise a ValueError that says `what` needs it."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"{what} needs the package {package}; install rheobase[{EXTRAS[package]}]") from None


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once during slow imports, where Python might swallow KeyboardInterrupt."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored or replaced
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
