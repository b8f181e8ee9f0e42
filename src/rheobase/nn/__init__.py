"""Layers: a synapse (convolution, linear layer, pooling) feeds a soma (normalise, sum, integrate, fire).

This module holds parameters and buffers; the maths is in `functional` and `kernels`. All layers take and return whole
sequences [T, N, ...] and keep no state between calls. Synapses fold T into the batch.
"""

from rheobase.nn.convolution import Conv2d, DeferredConv, hold
from rheobase.nn.input import as_sequence
from rheobase.nn.memory import MEMORY, set_memory
from rheobase.nn.pooling import AvgPool2d
from rheobase.nn.qcfs import QcfsSoma
from rheobase.nn.relu import ReluSoma
from rheobase.nn.soma import ReferenceSoma, Soma, somas, watched
from rheobase.nn.tdbn import TdBN, normalisations, together

__all__ = [
    "MEMORY", "AvgPool2d", "Conv2d", "DeferredConv", "QcfsSoma", "ReferenceSoma", "ReluSoma", "Soma", "TdBN",
    "as_sequence", "hold", "normalisations", "set_memory", "somas", "together", "watched",
]  # fmt: skip
