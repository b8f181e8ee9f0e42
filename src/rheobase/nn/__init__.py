"""Layers: a synapse (convolution, linear layer, pooling) feeds a soma (normalise, sum, integrate, fire).

Parameters and buffers live here, the maths in `functional` and `kernels`. Everything takes and returns whole sequences
[T, N, ...] and keeps no state between calls; synapses fold T into the batch.
"""

from rheobase.nn.convolution import MEMORY, Conv2d, DeferredConv, hold, set_memory
from rheobase.nn.input import as_sequence
from rheobase.nn.pooling import AvgPool2d
from rheobase.nn.qcfs import QcfsSoma
from rheobase.nn.relu import ReluSoma
from rheobase.nn.soma import ReferenceSoma, Soma, somas, watched
from rheobase.nn.tdbn import TdBN, normalisations, together

__all__ = [
    "MEMORY", "AvgPool2d", "Conv2d", "DeferredConv", "QcfsSoma", "ReferenceSoma", "ReluSoma", "Soma", "TdBN",
    "as_sequence", "hold", "normalisations", "set_memory", "somas", "together", "watched",
]  # fmt: skip
