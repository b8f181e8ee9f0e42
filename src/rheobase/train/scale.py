"""A model of scale: what a step of several GPUs takes, from that of one and the collectives in between.

    step = one GPU's step on its share of the batch + collectives of the statistics + reduction of the gradients

Collectives are counted from the network: every layer that normalises gathers its statistics in the forward pass and
reduces sums in the backward pass; the gradients are reduced once, together, at its end. Nothing of this hides behind
computation.

Latencies and bandwidths of NVLink and InfiniBand are those by which NCCL chooses its algorithms (its files
src/graph/tuning.cc and topo.h), and the adapters of a DGX H200; docs/training.md has the sources.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, isfinite, log2

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rheobase.data import DataInfo
from rheobase.nn import Soma, TdBN, normalisations
from rheobase.recipes import Recipe
from rheobase.train import plan, steptimes
from rheobase.train.freezing import freeze, train_mode
from rheobase.train.runs import network_for
from rheobase.train.steptimes import Estimate, Work

STATISTIC = 4  # bytes: they are float32


@dataclass(frozen=True)
class Link:
    """Between neighbours in a ring or a tree: seconds per message, bytes per second in one direction."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"link: expected GB/s above 0, got {self.bandwidth / 1e9:g}")
        if not (isfinite(self.latency) and self.latency >= 0):
            raise ValueError(f"latency: expected microseconds, 0 or more, got {self.latency * 1e6:g}")


NVLINK = Link(0.6e-6, 370e9)  # of the fourth generation, by which the GPUs of a node are joined
ADAPTER = Link(5e-6, 50e9)  # 400 Gb/s of InfiniBand for every GPU of a node
START = 6.6e-6  # seconds that any collective takes


@dataclass(frozen=True)
class Cluster:
    """`nodes` with `gpus` each. `between` is what joins two nodes: all adapters of a node together."""

    gpus: int = 1
    nodes: int = 1
    inside: Link = NVLINK
    between: Link = ADAPTER
    start: float = START

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.nodes < 1:
            raise ValueError(f"gpus, nodes: expected 1 or more of each, got {self.gpus} and {self.nodes}")

    @property
    def world(self) -> int:
        return self.gpus * self.nodes

    @property
    def bandwidth(self) -> float:
        return self.inside.bandwidth if self.nodes == 1 else min(self.inside.bandwidth, self.between.bandwidth)

    def gather(self, size: int) -> float:
        """Seconds until everybody has the `size` bytes of everybody: a ring through all GPUs."""
        if self.world == 1:
            return 0.0
        messages = (self.world - self.nodes) * self.inside.latency + (self.nodes - 1) * self.between.latency
        return self.start + messages + (self.world - 1) * size / self.bandwidth

    def reduce(self, size: int) -> float:
        """Seconds until everybody has the sum of all `size` bytes: chains in the nodes, a tree of nodes, and back."""
        if self.world == 1:
            return 0.0
        one_way = (self.gpus - 1) * self.inside.latency + ceil(log2(self.nodes)) * self.between.latency
        return self.start + 2 * one_way + 2 * (self.world - 1) / self.world * size / self.bandwidth


def cluster(gpus: int, nodes: int, link: float | None = None, latency: float | None = None) -> Cluster:
    """Of H200s; `link` is the network of one node in GB/s, `latency` that between nodes in microseconds."""
    usual = Cluster(gpus, nodes)
    if nodes == 1 and not (link is None and latency is None):
        raise ValueError("link and latency are those between nodes: give them with --nodes 2 or more")
    between = Link(
        ADAPTER.latency if latency is None else latency * 1e-6,
        ADAPTER.bandwidth * gpus if link is None else link * 1e9,
    )
    return replace(usual, between=between)


@dataclass(frozen=True)
class Traffic:
    """What a process hands to the collectives of one step, in bytes."""

    gathered: tuple[int, ...]
    """Statistics, of each layer."""
    reduced: tuple[int, ...]
    """Sums of the backward pass, of each layer."""
    gradients: int
    """All at once."""

    @classmethod
    def of(cls, network: nn.Module, statistics: str = "joined") -> "Traffic":
        """Of a network that is in the mode in which it trains; local statistics stay where they are."""
        all_layers = normalisations(network) if statistics == "joined" else []
        layers = [layer for layer in all_layers if layer.training and _normalises(layer)]
        return cls(
            gathered=tuple((2 * layer.branches + 1) * layer.channels * STATISTIC for layer in layers),
            reduced=tuple((layer.branches + 1) * layer.channels * STATISTIC for layer in layers),
            gradients=sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad),
        )

    @property
    def collectives(self) -> int:
        return len(self.gathered) + len(self.reduced) + 1

    @property
    def bytes(self) -> int:
        return sum(self.gathered) + sum(self.reduced) + self.gradients

    def seconds(self, cluster: Cluster) -> tuple[float, float]:
        """Of the statistics, and of the gradients."""
        statistics = sum(map(cluster.gather, self.gathered)) + sum(map(cluster.reduce, self.reduced))
        return statistics, cluster.reduce(self.gradients)


@dataclass(frozen=True)
class Prediction:
    """Of one recipe on one cluster; all times are seconds, those of a step at the full number of timesteps."""

    gpus: int
    """Of a node."""
    nodes: int
    batch: int
    """Images of one GPU."""
    compute: float
    statistics: float
    gradients: float
    step: float
    images_per_second: float
    efficiency: float
    """Share of what as many GPUs would do that have nobody to wait for and the whole batch each."""
    epoch: float | None
    recipe: float | None
    """All epochs, those with fewer timesteps too; None where the number of training images is not known."""
    kind: str
    """How `compute` is known: measured, interpolated, extrapolated or estimated."""
    basis: str
    """The measured steps that it comes from."""


@dataclass(frozen=True)
class Forecast:
    """Of one recipe on ever more GPUs, the last of them those that were asked for."""

    device: str
    """The GPU of the step times: not one of this machine."""
    precision: str
    """With which they were measured."""
    pace: float | None
    """How much longer the GPU of this machine takes, if one was timed: then all times are those of such GPUs."""
    collectives: int
    bytes: int
    """Of a step, and what a process hands to them."""
    predictions: tuple[Prediction, ...]


StepTime = Callable[[int, int], Estimate]  # of so many images and timesteps, on one GPU


def forecast(recipe: Recipe, data: DataInfo, asked: Cluster, timed: float | None = None) -> Forecast:
    """From the package's step times; `timed` are seconds of a step of the whole batch on a GPU of this machine."""
    table, (traffic, work) = steptimes.table(), counted(recipe, data)
    pace = 1.0

    def alone(batch: int, timesteps: int) -> Estimate:
        setting = {"timesteps": timesteps, "batch": batch}
        found = table.estimate(recipe.network, data.size, work, **setting, memory=recipe.memory)
        return replace(found, seconds=pace * found.seconds)

    if timed is not None:
        pace = timed / alone(share(recipe, data, Cluster()), recipe.timesteps).seconds
    return Forecast(
        device=table.device,
        precision=table.precision,
        pace=None if timed is None else pace,
        collectives=traffic.collectives,
        bytes=traffic.bytes,
        predictions=tuple(predict(recipe, data, where, traffic, alone) for where in ladder(asked)),
    )


def share(recipe: Recipe, data: DataInfo, where: Cluster) -> int:
    """Images of a batch for one GPU: of that with the most, where they do not share evenly."""
    size = _batch(recipe, data)
    if size < where.world:
        raise ValueError(
            f"{where.world} GPUs need at least as many images in a batch, there are {size}: take fewer GPUs, or a "
            "larger batch with --set batch_size=..."
        )
    return -(-size // where.world)


def predict(recipe: Recipe, data: DataInfo, where: Cluster, traffic: Traffic, alone: StepTime) -> Prediction:
    """What training takes on a cluster whose GPUs take `alone` for a step that they need not share."""
    own = share(recipe, data, where)
    compute = alone(own, recipe.timesteps)
    statistics, gradients = traffic.seconds(where)
    waiting = statistics + gradients
    step = compute.seconds + waiting
    times = plan.over_epochs(recipe, data, lambda r: alone(own, r.timesteps).seconds + waiting)
    size = _batch(recipe, data)
    return Prediction(
        gpus=where.gpus,
        nodes=where.nodes,
        batch=own,
        compute=compute.seconds,
        statistics=statistics,
        gradients=gradients,
        step=step,
        images_per_second=size / step,
        efficiency=alone(size, recipe.timesteps).seconds / (where.world * step),
        epoch=times.epoch,
        recipe=times.recipe,
        kind=compute.kind,
        basis=compute.basis,
    )


def _batch(recipe: Recipe, data: DataInfo) -> int:
    """Images of a step; a small data set is one batch."""
    return min(recipe.batch_size, data.images) if data.images else recipe.batch_size


def counted(recipe: Recipe, data: DataInfo) -> tuple[Traffic, Work]:
    """The collectives of a step of the recipe's network, and its work, without its memory."""
    with FakeTensorMode():
        network = network_for(recipe, data)
        freeze(network, recipe)
        train_mode(network, recipe)
        return Traffic.of(network, recipe.statistics), Work.of(network, data.shape)


def ladder(asked: Cluster) -> Iterator[Cluster]:
    """1, 2, 4, ... GPUs of one node, then so many nodes, up to what is asked for."""
    for gpus in _doubled(asked.gpus):
        yield replace(asked, gpus=gpus, nodes=1)
    for nodes in _doubled(asked.nodes):
        if nodes > 1:
            yield replace(asked, nodes=nodes)


def _doubled(last: int) -> list[int]:
    return [*(2**k for k in range(last.bit_length()) if 2**k < last), last]


def _normalises(layer: TdBN) -> bool:
    """Somas may get their currents as they are, from layers that did it before."""
    return not isinstance(layer, Soma) or layer.normalize
