"""Membrane potentials and firing rates of neurons with input x ~ N(0, sigma^2) (Fig. 3, Fig. 4, Theorem 2)."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import comb

import torch
from torch import Tensor

from rheobase import functional
from rheobase.analysis.isometry import normal_cdf


def potentials(current: Tensor, *, decay: float | Tensor, v_th: float, reset: str = "hard") -> Tensor:
    """Return the potentials u [T, ...] of the neurons of `functional.lif`, just before the reset."""
    decay = functional.decay_factor(decay, current)
    v = torch.zeros_like(current[0])
    out = []
    for x in current:
        out.append(decay * v + x)
        _, v = functional.lif_step(x, v, decay=decay, v_th=v_th, reset=reset)
    return torch.stack(out)


@dataclass(frozen=True)
class Histogram:
    """A density between edges."""

    edges: list[float]
    density: list[float]

    @property
    def mean(self) -> float:
        """The mean of the values between the edges."""
        return self._average(lambda x: x)

    @property
    def deviation(self) -> float:
        """The standard deviation of the values between the edges."""
        mean = self.mean
        return self._average(lambda x: (x - mean) ** 2) ** 0.5

    def _average(self, of: Callable[[float], float]) -> float:
        total = sum(self.density)
        centres = ((a + b) / 2 for a, b in pairwise(self.edges))
        return sum(d * of(x) for d, x in zip(self.density, centres, strict=True)) / total if total else float("nan")


@dataclass(frozen=True)
class Membrane:
    """Potentials of neurons that start at rest: one value per timestep, and the histogram over all timesteps."""

    sigma: float
    mean: list[float]
    variance: list[float]
    fired: list[float]
    without_reset: list[float]
    two_terms: list[float]
    histogram: Histogram


def membrane_distribution(
    sigma: float, *, decay: float, v_th: float, timesteps: int, neurons: int = 100_000, seed: int = 0
) -> Membrane:
    """Simulate potentials. Also return the variance without resets, and the two terms that the paper keeps (Eq. 26)."""
    x = _currents(sigma, timesteps, neurons, seed)
    u = potentials(x, decay=decay, v_th=v_th)
    return Membrane(
        sigma=sigma,
        mean=u.mean(1).tolist(),
        variance=u.var(1).tolist(),
        fired=(u > v_th).double().mean(1).tolist(),
        without_reset=[variance_without_reset(sigma, decay, t) for t in range(1, timesteps + 1)],
        two_terms=[sigma**2 * (1 + (decay**2 if t > 1 else 0)) for t in range(1, timesteps + 1)],
        histogram=histogram(u, -5 * sigma, 5 * sigma),
    )


def variance_without_reset(sigma: float, decay: float, step: int) -> float:
    """Return the variance of u at timestep t = `step`: sigma^2 (1 - decay^(2 t)) / (1 - decay^2)."""
    if decay == 1:
        return sigma**2 * step
    return sigma**2 * (1 - decay ** (2 * step)) / (1 - decay**2)


@dataclass(frozen=True)
class Firing:
    """Fractions of neurons that fire k of T times, k = 0 ... T."""

    sigma: float
    rate: float
    shares: list[float]
    first_step: float
    """P(u > v_th) at the first timestep, which is 1 - Phi(v_th / sigma) for any decay."""
    without_memory: list[float]
    """The binomial fractions at decay 0."""


def firing_distribution(
    sigma: float, *, decay: float, v_th: float, timesteps: int, neurons: int = 100_000, seed: int = 0
) -> Firing:
    """Simulate firing. Also return what is known in closed form."""
    x = _currents(sigma, timesteps, neurons, seed)
    spikes = functional.lif(x, decay=decay, v_th=v_th, width=1.0)
    counts = torch.bincount(spikes.sum(0).long(), minlength=timesteps + 1) / neurons
    p = 1 - normal_cdf(v_th / sigma)
    return Firing(
        sigma=sigma,
        rate=float(spikes.mean()),
        shares=counts.tolist(),
        first_step=p,
        without_memory=[comb(timesteps, k) * p**k * (1 - p) ** (timesteps - k) for k in range(timesteps + 1)],
    )


def histogram(values: Tensor, low: float, high: float, bins: int = 60) -> Histogram:
    """Return the density between `low` and `high`. Values outside count towards the total."""
    counts = torch.histc(values.float(), bins, low, high)
    width = (high - low) / bins
    return Histogram([low + i * width for i in range(bins + 1)], (counts / (values.numel() * width)).tolist())


def _currents(sigma: float, timesteps: int, neurons: int, seed: int) -> Tensor:
    if sigma <= 0:
        raise ValueError(f"expected a standard deviation above 0, got {sigma}")
    random = torch.Generator().manual_seed(seed)
    return sigma * torch.randn(timesteps, neurons, generator=random, dtype=torch.float64)
