"""The reference simulator: run an exported NIR file event by event and count the operations.

It interprets the file independently of the rest of the package, with NumPy and h5py alone. A spike adds the weights of
its synapses to the neurons that they reach. A weight of zero is not a synapse, and silent neurons cost nothing.

Neurons from `formats.nir.to_graph` may have two values that a NIR file cannot express: `v_lowered`, by which a spike
lowers the potential instead of resetting it, and `v_initial`, the potential at the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheobase.deploy.nirfile import NEURONS, Graph, Node
from rheobase.deploy.pairs import LARGEST_INPUT

Array = NDArray[np.float64]


@dataclass
class Operations:
    """Additions and multiplications in synapses and neurons. A multiplication includes the addition of its product."""

    additions: int = 0
    multiplications: int = 0


@dataclass
class Simulation:
    """The result of a simulation."""

    logits: Array  # [T, K]
    spikes: dict[str, NDArray[np.bool_]]  # [T, ...] of every layer of neurons
    operations: dict[str, Operations]  # of every node, over all timesteps


def simulate(graph: Graph, x: NDArray[Any], timesteps: int | None = None) -> Simulation:
    """Run one image [C, H, W] for `timesteps`, or a sequence [T, C, H, W]."""
    (_, inlet), *_ = graph.nodes.items()
    if x.shape[-3:] != inlet.shape or x.ndim not in (3, 4) or (x.ndim == 3) == (timesteps is None):
        raise ValueError(
            f"expected an image {list(inlet.shape)} with timesteps, or a sequence of such images, got {list(x.shape)}"
        )
    steps = np.broadcast_to(x, (timesteps, *x.shape)) if timesteps is not None else x
    machine = {name: _Layer(node, graph.metadata) for name, node in graph.nodes.items()}
    logits = []
    spikes: dict[str, list[NDArray[np.bool_]]] = {name: [] for name, n in graph.nodes.items() if n.kind in NEURONS}
    for x_t in steps:
        values: dict[str, Array] = {}
        for name, node in graph.nodes.items():
            inputs = [values[source] for source in node.sources] or [_rounded(x_t, graph.metadata)]
            values[name] = machine[name].step(inputs)
            if name in spikes:
                spikes[name].append(values[name] != 0)
        logits.append(values[name].ravel() * float(graph.metadata.get("logit_unit", 1.0)))
    return Simulation(
        np.stack(logits),
        {name: np.stack(s) for name, s in spikes.items()},
        {name: layer.done for name, layer in machine.items()},
    )


def _rounded(x: NDArray[Any], metadata: dict[str, float | str]) -> Array:
    """Round the input of a quantised network to whole units and clip it."""
    if "input_unit" not in metadata:
        return x.astype(np.float64)
    largest = float(metadata.get("input_largest", LARGEST_INPUT))
    return np.clip(np.rint(x.astype(np.float64) / float(metadata["input_unit"])), -largest, largest)


class _Layer:
    """A node with its state and its counts."""

    def __init__(self, node: Node, metadata: dict[str, float | str]) -> None:
        self.node, self.done = node, Operations()
        self.bits = metadata.get("fraction_bits")
        if node.kind in NEURONS:
            self.v = node.values.get("v_initial", np.zeros(node.shape))
            dt = float(metadata["dt"])
            gain = dt / node.values["tau"] if node.kind == "LIF" else np.zeros(node.shape)
            self.decay, self.r = 1 - gain, (gain if node.kind == "LIF" else dt) * node.values["r"]
            if self.bits is not None:  # recover the exact numbers from the rounded tau and r
                one = 2.0 ** float(self.bits)
                self.decay, self.r = np.rint(self.decay * one) / one, np.ones(node.shape)
        if node.kind == "Conv2d":
            self.synapses = _Synapses(node.values["weight"])
            self.stride, self.padding = node.values["stride"].tolist(), node.values["padding"].tolist()
        if node.kind == "Affine":  # a 1x1 convolution of a single pixel
            self.synapses = _Synapses(node.values["weight"][:, :, None, None])
            self.stride, self.padding = [1, 1], [0, 0]

    def step(self, inputs: list[Array]) -> Array:
        kind = self.node.kind
        if kind in NEURONS:
            return self._fire(inputs)
        if kind == "Conv2d":
            return self._synapse(inputs)
        if kind == "Affine":
            return self._synapse([x[:, None, None] for x in inputs]).reshape(self.node.shape)
        if kind in ("AvgPool2d", "SumPool2d"):
            return self._pool(inputs)
        return np.sum(inputs, axis=0).reshape(self.node.shape)

    def _synapse(self, inputs: list[Array]) -> Array:
        """Return the current. Every source sends its own events."""
        out_channels, height, width = self.node.shape if len(self.node.shape) == 3 else (*self.node.shape, 1, 1)
        current = np.zeros(height * width * out_channels)
        for x in inputs:
            self._receive(x, current, (height, width, out_channels))
        bias = self.node.values["bias"]
        self.done.additions += height * width * int(np.count_nonzero(bias))
        return current.reshape(height, width, out_channels).transpose(2, 0, 1) + bias[:, None, None]

    def _receive(self, x: Array, current: Array, size: tuple[int, int, int]) -> None:
        """Add to `current` the weights of all synapses that the events in x reach."""
        height, width, out_channels = size
        events = np.nonzero(x)
        amount = x[events]  # spikes are ones and need no multiplication
        kernel = self.synapses.kernel
        for position, which, (ky, kx) in _reached(events, kernel, self.stride, self.padding, (height, width)):
            target, weight, origin = self.synapses.of(events[0][which], ky, kx)
            factor = amount[which][origin]
            multiplied = int(np.count_nonzero(factor != 1))
            self.done.multiplications += multiplied
            self.done.additions += len(weight) - multiplied
            current += np.bincount(position[origin] * out_channels + target, weight * factor, len(current))

    def _pool(self, inputs: list[Array]) -> Array:
        values = self.node.values
        channels, height, width = self.node.shape
        kernel, stride, padding = (values[k].tolist() for k in ("kernel_size", "stride", "padding"))
        total = np.zeros(self.node.shape)
        for x in inputs:
            events = np.nonzero(x)
            for position, which, _ in _reached(events, kernel, stride, padding, (height, width)):
                np.add.at(total.reshape(channels, -1), (events[0][which], position), x[events][which])
                self.done.additions += len(position)
        if self.node.kind == "AvgPool2d":
            self.done.multiplications += int(np.count_nonzero(total))
            total /= prod(kernel)
        return total

    def _fire(self, inputs: list[Array]) -> Array:
        values = self.node.values
        current = np.sum(inputs, axis=0)
        charged = int(np.count_nonzero(self.v))
        self.done.multiplications += charged if self.node.kind == "LIF" else 0
        self.done.additions += charged + (len(inputs) - 1) * current.size
        v = self.decay * self.v
        if self.bits is not None:
            v = np.floor(v * 2.0 ** float(self.bits)) / 2.0 ** float(self.bits)
        v = v + self.r * current + (1 - self.decay) * values.get("v_leak", 0.0)
        fired = v > values["v_threshold"]
        after = v - values["v_lowered"] if "v_lowered" in values else values["v_reset"]
        self.v = np.where(fired, after, v)
        self.done.additions += int(fired.sum()) if "v_lowered" in values else 0
        return fired.astype(np.float64)


class _Synapses:
    """The nonzero weights, grouped by their position in the kernel and the channel that their spikes come from."""

    def __init__(self, weight: NDArray[Any]) -> None:
        outgoing = weight.astype(np.float64).transpose(2, 3, 1, 0)  # [kh, kw, C, O]
        self.kernel = list(outgoing.shape[:2])
        *group, self.targets = np.nonzero(outgoing)
        self.weights = outgoing[*group, self.targets]
        self.counts = np.count_nonzero(outgoing, axis=3)
        self.starts = (np.cumsum(self.counts) - self.counts.ravel()).reshape(self.counts.shape)

    def of(self, channels: NDArray[Any], ky: int, kx: int) -> tuple[NDArray[Any], Array, NDArray[Any]]:
        """Return output channel, weight and index of the spike, one entry per synapse, for spikes in these channels."""
        counts = self.counts[ky, kx][channels]
        origin = np.repeat(np.arange(len(channels)), counts)
        within = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = self.starts[ky, kx][channels][origin] + within
        return self.targets[chosen], self.weights[chosen], origin


def _reached(
    events: tuple[NDArray[Any], ...], kernel: list[int], stride: list[int], padding: list[int], size: tuple[int, int]
) -> Iterator[tuple[NDArray[Any], NDArray[Any], tuple[int, int]]]:
    """Yield, for every position in the kernel: the outputs that events reach through it, which events, the position."""
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            y, y_rest = np.divmod(events[1] + padding[0] - ky, stride[0])
            x, x_rest = np.divmod(events[2] + padding[1] - kx, stride[1])
            inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
            which = np.nonzero((y_rest == 0) & (x_rest == 0) & inside)[0]
            yield y[which] * size[1] + x[which], which, (ky, kx)
