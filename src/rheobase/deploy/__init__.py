"""From a trained network to one that runs on spikes alone: fold, quantise, export, simulate."""

from rheobase.deploy.fold import fold
from rheobase.deploy.network import Network

__all__ = ["Network", "fold"]
