"""Measure accuracy against the number of timesteps, in one pass: the first T timesteps are a run with T timesteps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF
from rheobase.nn import watched
from rheobase.train.capture import capture

TOGETHER = {"cuda": 4096, "cpu": 512}  # images times timesteps to run at once; memory grows with it


@dataclass(frozen=True)
class Point:
    """The results of a network within a number of timesteps."""

    timesteps: int
    accuracy: float
    rates: dict[str, float]
    """Spikes per neuron and timestep of every layer of neurons."""


def doubling(longest: int) -> list[int]:
    """Return 1, 2, 4, ... and the longest."""
    return sorted({2**i for i in range(longest.bit_length())} | {longest})


@torch.no_grad()
def sweep(network: Network, batches: Iterable[tuple[Tensor, Tensor]], timesteps: Sequence[int]) -> list[Point]:
    """Measure a network at each number of timesteps, over batches of images [N, C, H, W] and their labels.

    A few images at a time run all timesteps; on a GPU, as one CUDA graph. Nothing waits for the host before the end.
    """
    steps = sorted(set(timesteps))
    if not steps or steps[0] < 1:
        raise ValueError(f"expected numbers of timesteps of at least 1, got {list(timesteps)}")
    longest, device = steps[-1], next(network.parameters()).device
    few = max(1, TOGETHER.get(device.type, TOGETHER["cpu"]) // longest)
    layers = {name: node for name, node in network.nodes.items() if isinstance(node, LIF)}
    correct = torch.zeros(longest, dtype=torch.float64, device=device)  # after every timestep
    spikes = {name: torch.zeros_like(correct) for name in layers}  # per neuron, at every timestep
    images = 0

    def count(name: str, s: Tensor) -> None:
        spikes[name] += s.sum([*range(1, s.ndim)], dtype=torch.float64) / s[0, 0].numel()

    def measure(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        logits = network(x, longest)
        correct.add_((logits.double().cumsum(0).argmax(2) == labels).sum(1))
        return ()

    step = capture(measure, device, eager_calls=1)
    with watched(network, layers, count):
        for batch, labels in batches:
            if batch.ndim != 4:
                raise ValueError(
                    f"expected images [N, C, H, W], got {list(batch.shape)}: a recording has its own timesteps"
                )
            for part in zip(batch.split(few), labels.split(few), strict=True):
                step(*part)
            images += len(labels)
    if not images:
        raise ValueError("sweep: expected at least one image, got none")
    shares = (correct / images).tolist()
    rates = {name: (own.cumsum(0) / images).tolist() for name, own in spikes.items()}
    return [Point(t, shares[t - 1], {name: own[t - 1] / t for name, own in rates.items()}) for t in steps]
