"""Round weights to integers, with regard to the inputs of the layer.

Rounding to the nearest integer is best if inputs are uncorrelated. The inputs of a real layer are correlated, so other
weights can compensate for the error of one. The weights are rounded one after another, and the error of each is spread
over those that follow (GPTQ, Frantar et al. 2023).
"""

import torch
from torch import Tensor

LARGEST = 127
GROUP = 1024  # weights of an output that compensate for each other
BLOCK = 64  # weights whose errors are passed on to the weights after the block at once
DAMPING, DOUBT = 0.01, 0.1  # relative to the mean square of the inputs; few samples give uncertain correlations


def rounded(weight: Tensor, inputs: Tensor) -> Tensor:
    """Return weights [K, F] as 8-bit integers, such that their sums over `inputs` [P, F] change little.

    Spikes may be given in float32, because their products are counts, which float32 holds exactly.
    """
    groups = zip(weight.split(GROUP, 1), inputs.split(GROUP, 1), strict=True)
    return torch.cat([_rounded(w, x) for w, x in groups], 1)


def _rounded(weight: Tensor, inputs: Tensor) -> Tensor:
    moments = (inputs.T @ inputs).to(weight.dtype) / len(inputs)
    damping = DAMPING + DOUBT * weight.shape[1] / len(inputs)
    moments.diagonal().add_(damping * moments.diagonal().mean().item() or 1.0)
    # row j says how to spread the error of weight j over the weights after it
    spread = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    rest = weight.T.clone(memory_format=torch.contiguous_format)  # one row per input
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
