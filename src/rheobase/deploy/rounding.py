"""Weights as integers, rounded for the inputs that they will meet.

Rounding every weight to the nearest integer is best for inputs that have nothing to do with each other. Those of a real
layer do, so the error of one weight can be made good by others: the weights are rounded one after the other, and what
each of them loses goes to those behind it (GPTQ, Frantar et al. 2023).
"""

import torch
from torch import Tensor

LARGEST = 127
GROUP = 1024  # weights of an output that make good for each other
BLOCK = 64  # of these, what they pass on to all behind them is added at once
DAMPING, DOUBT = 0.01, 0.1  # in mean squares of the inputs: correlations that few samples show are not trusted


def rounded(weight: Tensor, inputs: Tensor) -> Tensor:
    """Weights [K, F] as integers of 8 bits, such that their sums over `inputs` [P, F] change little.

    Inputs that are spikes may come as float32: their products are counts, which it holds exactly.
    """
    groups = zip(weight.split(GROUP, 1), inputs.split(GROUP, 1), strict=True)
    return torch.cat([_rounded(w, x) for w, x in groups], 1)


def _rounded(weight: Tensor, inputs: Tensor) -> Tensor:
    moments = (inputs.T @ inputs).to(weight.dtype) / len(inputs)
    damping = DAMPING + DOUBT * weight.shape[1] / len(inputs)
    moments.diagonal().add_(damping * moments.diagonal().mean().item() or 1.0)
    # row j says how an error of weight j is best spread over the weights behind it
    spread = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    rest = weight.T.clone(memory_format=torch.contiguous_format)  # a row for every input
    result = torch.empty_like(rest)
    for start in range(0, len(rest), BLOCK):
        stop = min(start + BLOCK, len(rest))
        errors = torch.empty_like(rest[start:stop])
        for j in range(start, stop):
            torch.round(rest[j], out=result[j]).clamp_(-LARGEST, LARGEST)
            torch.div(rest[j] - result[j], spread[j, j], out=errors[j - start])
            rest[j:stop].addr_(spread[j, j:stop], errors[j - start], alpha=-1)
        rest[stop:].addmm_(spread[start:stop, stop:].T, errors, alpha=-1)
    return result.T
