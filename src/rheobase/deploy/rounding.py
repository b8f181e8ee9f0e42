"""Weights as integers, rounded for the inputs that they will meet.

Rounding every weight to the nearest integer is best for inputs that have nothing to do with each other. Those of a real
layer do, so the error of one weight can be made good by others: the weights are rounded one after the other, and what
each of them loses goes to those behind it (GPTQ, Frantar et al. 2023).
"""

import torch
from torch import Tensor

LARGEST = 127
GROUP = 1024  # weights of an output that make good for each other
DAMPING, DOUBT = 0.01, 0.1  # in mean squares of the inputs: correlations that few samples show are not trusted


def rounded(weight: Tensor, inputs: Tensor) -> Tensor:
    """Weights [K, F] as integers of 8 bits, such that their sums over `inputs` [P, F] change little."""
    groups = zip(weight.split(GROUP, 1), inputs.split(GROUP, 1), strict=True)
    return torch.cat([_rounded(w.clone(), x) for w, x in groups], 1)


def _rounded(weight: Tensor, inputs: Tensor) -> Tensor:
    moments = inputs.T @ inputs / len(inputs)
    damping = DAMPING + DOUBT * weight.shape[1] / len(inputs)
    moments.diagonal().add_(damping * moments.diagonal().mean().item() or 1.0)
    # row j says how an error of weight j is best spread over the weights behind it
    spread = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    result = torch.empty_like(weight)
    for j, row in enumerate(spread):
        result[:, j] = weight[:, j].round().clamp(-LARGEST, LARGEST)
        error = (weight[:, j] - result[:, j]) / row[j]
        weight[:, j:].addr_(error, row[j:], alpha=-1)
    return result
