"""Block dynamical isometry (Lemma 1, Theorem 1), measured with random probes instead of whole Jacobians.

A block runs from the input current of one layer of neurons (the sum of its tdBN outputs) through neurons and synapses
to the next input current. For its Jacobian J with m outputs and probes v ~ N(0, I):

    phi(J J^T)    = E |J^T v|^2 / m                       one vector-Jacobian product
    varphi(J J^T) = E |J J^T v|^2 / m - phi(J J^T)^2      one more Jacobian-vector product
"""

from dataclasses import dataclass
from itertools import pairwise
from math import erf, sqrt

import torch
from torch import Tensor, nn

from rheobase.analysis.somas import on_reference
from rheobase.models import SpikingNet
from rheobase.nn import ReferenceSoma, somas


@dataclass(frozen=True)
class Estimate:
    """phi and varphi with their standard errors over the probes."""

    phi: float
    phi_error: float
    varphi: float
    varphi_error: float


@dataclass(frozen=True)
class BlockIsometry:
    """The estimates of one block: outputs at each timestep, with respect to its inputs at all timesteps."""

    name: str
    steps: list[Estimate]


def probe(output: Tensor, source: Tensor, where: Tensor, probes: int, random: torch.Generator) -> Estimate:
    """Estimate phi and varphi of the Jacobian from `source` to the elements of `output` where the mask `where` is true.

    For both, m is the number of those elements.
    """
    if probes < 2:
        raise ValueError(f"isometry: expected at least 2 probes, for standard errors, got {probes}")
    m = int(where.sum())
    first, second = [], []
    for _ in range(probes):
        v = torch.randn(output.shape, dtype=output.dtype, generator=random).to(output.device) * where
        v.requires_grad_()
        (back,) = torch.autograd.grad(output, source, v, create_graph=True, retain_graph=True)
        first.append(float(back.detach().square().sum()) / m)
        if back.requires_grad:
            (forth,) = torch.autograd.grad(back, v, back.detach(), retain_graph=True)
        else:
            forth = torch.zeros_like(v)
        second.append(float((forth * where).square().sum()) / m)
    return _estimate(torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64))


def isometry(
    network: SpikingNet, images: Tensor, timesteps: int, *, probes: int = 8, seed: int = 0
) -> list[BlockIsometry]:
    """Estimate every block in the body of `network` at its present weights, with the statistics of this batch.

    In a residual network, a block is a residual block with its shortcut.
    """
    law = on_reference(network)
    assert isinstance(law, SpikingNet)
    law.requires_grad_(False)  # derivatives with respect to weights are not needed
    found = somas(law)
    ends = ["soma", *(_last(f"body.{name}", block) for name, block in law.body.named_children())]
    arrived: dict[str, Tensor] = {}  # the current into a boundary
    leaves: dict[str, Tensor] = {}  # the same values, as the start of the next block

    for name in ends:

        def cut(current: Tensor, name: str = name) -> Tensor:
            arrived[name] = current
            leaves[name] = current.detach().requires_grad_()
            return leaves[name]

        soma = found[name]
        assert isinstance(soma, ReferenceSoma)
        soma.observe = cut
    law.train()(images, timesteps)
    random = torch.Generator().manual_seed(seed)
    blocks = []
    for start, end in pairwise(ends):
        steps = []
        for t in range(timesteps):
            where = torch.zeros_like(arrived[end], dtype=torch.bool)
            where[t] = True
            steps.append(probe(arrived[end], leaves[start], where, probes, random))
        blocks.append(BlockIsometry(end.rpartition(".")[0], steps))
        del arrived[end]  # its graph is not needed again
    return blocks


def predicted_phi(r: float) -> float:
    """Return phi of LIF - convolution - tdBN at decay 0 and initialisation, for r = width / v_th and wide layers.

    A fraction P(r) of neurons is inside the window of the surrogate, where the derivative is 1 / width. The convolution
    adds up the variances of its inputs, each p (1 - p) for spikes of probability p, and tdBN scales the sum to v_th^2.
    """
    p = 1 - normal_cdf(1)
    return window(r) / (r**2 * p * (1 - p))


def predicted_varphi(r: float) -> float:
    """Return varphi of the same block with as many input as output channels: phi^2 / P(r), far from 0."""
    return predicted_phi(r) ** 2 / window(r)


def predicted_residual_phi(r: float, *, behind_identity: bool) -> float:
    """Return phi of a residual block: phi of its first neurons times the mean over its two branches.

    The branches are the inner block, with its own phi, and the shortcut, with 1. The first neurons receive
    N(0, v_th^2). After a block with an identity shortcut, half of this variance comes from spikes of probability p,
    which have only two values, so fewer neurons are inside the window.
    """
    p = 1 - normal_cdf(1)
    share = window(r)
    if behind_identity:
        parts = [(p, (1 - p) / sqrt(p * (1 - p))), (1 - p, -p / sqrt(p * (1 - p)))]  # probability and value, variance 1

        def below(x: float) -> float:
            """Return P(current < x v_th) for the sum of a normal branch and spikes, each with variance 1/2."""
            return sum(chance * normal_cdf(sqrt(2) * x - value) for chance, value in parts)

        share, p = below(1 + r / 2) - below(1 - r / 2), 1 - below(1)
    return share / (r**2 * p * (1 - p)) * (predicted_phi(r) + 1) / 2


def window(r: float) -> float:
    """Return the fraction of neurons with input N(0, v_th^2) that are inside the window of the surrogate."""
    return normal_cdf(1 + r / 2) - normal_cdf(1 - r / 2)


def normal_cdf(x: float) -> float:
    """Return Phi(x), the fraction of a standard normal distribution below x."""
    return 0.5 * (1 + erf(x / sqrt(2)))


def _last(path: str, block: nn.Module) -> str:
    return [f"{path}.{name}" for name in somas(block)][-1]


def _estimate(first: Tensor, second: Tensor) -> Estimate:
    n = len(first)
    phi, error = float(first.mean()), float(first.std()) / n**0.5

    def varphi(a: Tensor, b: Tensor) -> Tensor:
        return b.mean() - (
            a.mean().square() - a.var() / len(a)
        )  # remove the bias of the squared mean, which is its variance

    if n < 3:
        return Estimate(phi, error, float(varphi(first, second)), float("nan"))
    keep = ~torch.eye(n, dtype=torch.bool)
    left_out = torch.stack([varphi(first[k], second[k]) for k in keep])  # jackknife
    spread = ((n - 1) / n * (left_out - left_out.mean()).square().sum()).sqrt()
    return Estimate(phi, error, float(varphi(first, second)), float(spread))
