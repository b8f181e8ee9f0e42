"""Train deep spiking neural networks directly (STBP-tdBN)."""

from importlib import import_module
from types import ModuleType

__version__ = "0.2.0"

ROOMS = (
    "analysis", "convert", "data", "deploy", "functional", "kernels", "models", "nn", "plugins",
    "recipes", "report", "tasks", "train",
)  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    """Import a room when it is first used: `import rheobase` is enough, and stays quick."""
    if name not in ROOMS:
        raise AttributeError(f"module 'rheobase' has no attribute '{name}'")
    return import_module(f"rheobase.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *ROOMS})
