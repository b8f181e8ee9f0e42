"""Estimate the time of a training step on a GPU from measured steps, without the GPU.

A captured step takes a fixed time for every layer that normalises, and a time for every image and timestep (one *unit*
of work). The first was fitted to measured batches of several sizes. The second is interpolated between measured steps
of the network. A network that was never measured is scaled from the nearest one, by multiplications and neurons.
`python -m tools.steptimes` writes the numbers to `steptimes.json`, from results/.
"""

import json
from dataclasses import dataclass
from functools import cache
from math import hypot, log
from pathlib import Path

import numpy as np
from torch import nn

from rheobase.analysis import sizes
from rheobase.nn import normalisations

FILE = Path(__file__).with_name("steptimes.json")


@dataclass(frozen=True)
class Work:
    """What a network computes for one image and timestep, and its number of layers."""

    multiplications: int
    neurons: int
    layers: int
    """Layers that normalise, mostly somas."""

    @classmethod
    def of(cls, network: nn.Module, shape: tuple[int, ...]) -> "Work":
        """Return the work of a network on meta or fake tensors, for images of `shape` [C, H, W]."""
        multiplications = sum(layer.multiplications for layer in sizes.synapses(network, shape))
        return cls(multiplications, sum(sizes.neurons(network, shape).values()), len(normalisations(network)))


@dataclass(frozen=True)
class Step:
    """A measured training step."""

    network: str
    image_size: int
    timesteps: int
    batch: int
    memory: str
    seconds: float
    source: str
    """The file in results/."""

    @property
    def units(self) -> int:
        """Images times timesteps."""
        return self.timesteps * self.batch

    @property
    def subject(self) -> tuple[str, int]:
        """Network and image size."""
        return self.network, self.image_size


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step, and where they come from."""

    seconds: float
    kind: str
    """Measured, interpolated or extrapolated (from the network itself), or estimated."""
    basis: str
    """The measured steps that it is based on."""


@dataclass(frozen=True)
class Table:
    """Measured steps of one GPU model, and what was fitted to them."""

    device: str
    precision: str
    seconds_per_layer: float
    """Fixed time of a step, for any batch."""
    seconds_per_multiplication: float
    """Per image and timestep. Fitted over all measured networks, to compare other networks with them."""
    seconds_per_neuron: float
    """The same for a neuron."""
    works: dict[tuple[str, int], Work]
    """Work of each measured network, by name and image size."""
    steps: tuple[Step, ...]

    def estimate(
        self, network: str, image_size: int, work: Work, *, timesteps: int, batch: int, memory: str
    ) -> Estimate:
        """Estimate a step of `batch` images. `work` is that of the network on images of this size."""
        subject = self._nearest(network, image_size, work, memory)
        known = [step for step in self.steps if step.subject == subject and step.memory == memory]
        nearest_t = min({step.timesteps for step in known}, key=lambda t: (abs(log(t / timesteps)), t))
        known = sorted((step for step in known if step.timesteps == nearest_t), key=lambda step: step.units)
        same = subject == (network, image_size)
        relative = 1.0 if same else self._cost(work) / self._cost(self.works[subject])
        units = timesteps * batch * relative
        fixed = self.seconds_per_layer * self.works[subject].layers
        per_unit = np.interp(log(units), [log(s.units) for s in known], [(s.seconds - fixed) / s.units for s in known])
        seconds = self.seconds_per_layer * work.layers + units * float(per_unit)
        kind, which = _around([step.batch for step in known], batch)
        if not same or nearest_t != timesteps:
            kind, which = "estimated", f"N = {known[0].batch}" + (f" to {known[-1].batch}" if known[1:] else "")
        name, size = subject
        return Estimate(seconds, kind, f"{name} of {size} x {size} pixels, T = {nearest_t}, {which}")

    def _nearest(self, network: str, image_size: int, work: Work, memory: str) -> tuple[str, int]:
        """Return the measured network that is nearest: this network itself, or the one with the most similar work."""
        known = {step.subject for step in self.steps if step.memory == memory}
        if (network, image_size) in known:
            return network, image_size

        def distance(subject: tuple[str, int]) -> tuple[float, tuple[str, int]]:
            other = self.works[subject]
            apart = hypot(
                log(_least(work.multiplications) / _least(other.multiplications)),
                log(_least(work.neurons) / _least(other.neurons)),
            )
            return apart, subject

        return min(known, key=distance)

    def _cost(self, work: Work) -> float:
        return self.seconds_per_multiplication * _least(work.multiplications) + self.seconds_per_neuron * work.neurons


@cache
def table() -> Table:
    """Return the table of the package."""
    content = json.loads(FILE.read_text())
    works = content.pop("networks")
    content["works"] = {(w.pop("network"), w.pop("image_size")): Work(**w) for w in works}
    content["steps"] = tuple(Step(**step) for step in content["steps"])
    return Table(**content)


def _least(count: int) -> int:
    """Return at least one: a network may have no weights, or no neurons that we can count."""
    return max(1, count)


def _around(measured: list[int], batch: int) -> tuple[str, str]:
    """Return the kind of an estimate for `batch` images, and the measured batches that it uses.

    `measured` is in ascending order.
    """
    if batch in measured:
        return "measured", f"N = {batch}"
    below, above = [n for n in measured if n < batch][-1:], [n for n in measured if n > batch][:1]
    kind = "interpolated" if below and above else "extrapolated"
    return kind, "N = " + " and ".join(map(str, below + above))
