"""Turn a trained network into one that runs on spikes alone: fold, quantise, export, simulate."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rheobase.deploy.folding import fold
    from rheobase.deploy.network import Network

__all__ = ["Network", "fold"]


def __getattr__(name: str) -> Any:
    """Import on first use, because the simulator does not need torch."""
    if name == "fold":
        from rheobase.deploy.folding import fold

        return fold
    if name == "Network":
        from rheobase.deploy.network import Network

        return Network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
