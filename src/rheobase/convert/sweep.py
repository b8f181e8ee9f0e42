"""Accuracy against the number of timesteps, in one pass: outputs add up, so the first T steps are a run of T steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.deploy.network import Network, State


@dataclass(frozen=True)
class Point:
    """What a network does within so many steps."""

    timesteps: int
    accuracy: float
    rates: dict[str, float]
    """Spikes per neuron and step of every layer of neurons."""


def doubling(longest: int) -> list[int]:
    """1, 2, 4, ... and the longest."""
    return sorted({2**i for i in range(longest.bit_length())} | {longest})


@torch.no_grad()
def sweep(network: Network, batches: Iterable[tuple[Tensor, Tensor]], timesteps: Sequence[int]) -> list[Point]:
    """At each of these numbers of steps, over batches of images [N, C, H, W] and their labels.

    One step at a time, so that memory does not grow with their number; nothing waits for the host before the end.
    """
    steps = sorted(set(timesteps))
    if not steps or steps[0] < 1:
        raise ValueError(f"expected numbers of timesteps of at least 1, got {list(timesteps)}")
    device = next(network.parameters()).device
    layers: dict[str, int] = {}
    correct = torch.zeros(len(steps), dtype=torch.float64, device=device)
    spikes: dict[str, Tensor] = {}  # per neuron, of all images, at each number of steps
    images = 0
    for x, labels in batches:
        if x.ndim != 4:
            raise ValueError(f"expected images [N, C, H, W], got {list(x.shape)}: a recording has its own steps")
        state: State | None = None
        total, fired = torch.zeros((), device=device), dict[str, Tensor]()

        def see(name: str, s: Tensor, fired: dict[str, Tensor] = fired) -> None:
            layers[name] = s[0].numel()
            fired[name] = fired.get(name, 0) + s.sum(dtype=torch.float64)

        for t in range(1, steps[-1] + 1):
            logits, state = network.step(x, state, see)
            total = total + logits
            if t in steps:
                place = steps.index(t)
                correct[place] += (total.argmax(1) == labels).sum()
                for name, count in fired.items():
                    spikes.setdefault(name, torch.zeros_like(correct))[place] += count / layers[name]
        images += len(labels)
    if not images:
        raise ValueError("sweep: expected at least one image, got none")
    shares = (correct / images).tolist()
    rates = {name: (own / images).tolist() for name, own in spikes.items()}
    return [
        Point(t, share, {name: own[i] / t for name, own in rates.items()})
        for i, (t, share) in enumerate(zip(steps, shares, strict=True))
    ]
