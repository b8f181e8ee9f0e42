"""Predict the step time on several GPUs from the step time on one GPU and the collectives.

    step = one GPU's step on its share of the batch + collectives of the statistics + reduction of the gradients

The collectives are counted from the network. Every layer that normalises gathers its statistics in the forward pass and
reduces sums in the backward pass. At the end, all gradients are reduced together. None of this overlaps with
computation.

The latencies and bandwidths of NVLink and InfiniBand are those by which NCCL chooses its algorithms (in its files
src/graph/tuning.cc and topo.h), and those of the adapters of a DGX H200; docs/training.md has the references.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, isfinite, log2

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rheobase.data import DataInfo
from rheobase.nn import normalisations
from rheobase.recipes import Recipe
from rheobase.train import plan, steptimes
from rheobase.train.freezing import freeze, train_mode
from rheobase.train.runs import network_for
from rheobase.train.steptimes import Estimate, Work
from rheobase.train.sweep import doubling

STATISTIC = 4  # bytes of a float32


@dataclass(frozen=True)
class Link:
    """A link between neighbours in a ring or tree: seconds per message, and bytes per second in one direction."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"link: expected GB/s above 0, got {self.bandwidth / 1e9:g}")
        if not (isfinite(self.latency) and self.latency >= 0):
            raise ValueError(f"latency: expected microseconds, 0 or more, got {self.latency * 1e6:g}")


NVLINK = Link(0.6e-6, 370e9)  # fourth generation, between the GPUs of a node
ADAPTER = Link(5e-6, 50e9)  # InfiniBand with 400 Gb/s for every GPU of a node
START = 6.6e-6  # seconds that every collective takes


@dataclass(frozen=True)
class Cluster:
    """`nodes` with `gpus` each. `between` is the link between two nodes: all adapters of a node together."""

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
        """Number of GPUs."""
        return self.gpus * self.nodes

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the slowest link."""
        return self.inside.bandwidth if self.nodes == 1 else min(self.inside.bandwidth, self.between.bandwidth)

    def gather(self, size: int) -> float:
        """Return the seconds of an all-gather of `size` bytes per GPU: a ring through all GPUs."""
        if self.world == 1:
            return 0.0
        messages = (self.world - self.nodes) * self.inside.latency + (self.nodes - 1) * self.between.latency
        return self.start + messages + (self.world - 1) * size / self.bandwidth

    def reduce(self, size: int) -> float:
        """Return the seconds of an all-reduce of `size` bytes: chains in the nodes, a tree of nodes, and back."""
        if self.world == 1:
            return 0.0
        one_way = (self.gpus - 1) * self.inside.latency + ceil(log2(self.nodes)) * self.between.latency
        return self.start + 2 * one_way + 2 * (self.world - 1) / self.world * size / self.bandwidth


def cluster(gpus: int, nodes: int, link: float | None = None, latency: float | None = None) -> Cluster:
    """Return a cluster of H200s. `link` is the bandwidth of a node in GB/s, `latency` that of its network in us."""
    usual = Cluster(gpus, nodes)
    if nodes == 1 and not (link is None and latency is None):
        raise ValueError("link and latency are for the network between nodes; use them with --nodes 2 or more")
    between = Link(
        ADAPTER.latency if latency is None else latency * 1e-6,
        ADAPTER.bandwidth * gpus if link is None else link * 1e9,
    )
    return replace(usual, between=between)


@dataclass(frozen=True)
class Traffic:
    """Bytes that a process contributes to the collectives of one step."""

    gathered: tuple[int, ...]
    """Statistics of each layer."""
    reduced: tuple[int, ...]
    """Sums of the backward pass of each layer."""
    gradients: int
    """All gradients together."""

    @classmethod
    def of(cls, network: nn.Module, statistics: str = "joined") -> "Traffic":
        """Return the traffic of a network in training mode. Local statistics cause none."""
        all_layers = normalisations(network) if statistics == "joined" else []
        layers = [layer for layer in all_layers if layer.training and layer.normalize]
        return cls(
            gathered=tuple((2 * layer.branches + 1) * layer.channels * STATISTIC for layer in layers),
            reduced=tuple((layer.branches + 1) * layer.channels * STATISTIC for layer in layers),
            gradients=sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad),
        )

    @property
    def collectives(self) -> int:
        """Number of collectives in a step."""
        return len(self.gathered) + len(self.reduced) + 1

    @property
    def bytes(self) -> int:
        """Bytes of all collectives together."""
        return sum(self.gathered) + sum(self.reduced) + self.gradients

    def seconds(self, cluster: Cluster) -> tuple[float, float]:
        """Return the seconds for the statistics, and for the gradients."""
        statistics = sum(map(cluster.gather, self.gathered)) + sum(map(cluster.reduce, self.reduced))
        return statistics, cluster.reduce(self.gradients)


@dataclass(frozen=True)
class Prediction:
    """Prediction for one recipe on one cluster. Times are in seconds, for a step at the full number of timesteps."""

    gpus: int
    """GPUs per node."""
    nodes: int
    batch: int
    """Images per GPU."""
    compute: float
    statistics: float
    gradients: float
    step: float
    images_per_second: float
    efficiency: float
    """Speed relative to as many independent GPUs, each with the whole batch."""
    epoch: float | None
    recipe: float | None
    """All epochs, including those with fewer timesteps; None if the number of training images is not known."""
    kind: str
    """Where `compute` comes from: measured, interpolated, extrapolated or estimated."""
    basis: str
    """The measured steps that it is based on."""


@dataclass(frozen=True)
class Forecast:
    """Predictions for one recipe on more and more GPUs, up to the cluster that was asked for."""

    device: str
    """The GPU on which the steps were measured, which need not be in this machine."""
    precision: str
    """The precision in which they were measured."""
    pace: float | None
    """Step time of this machine's GPU relative to `device`, if it was timed; all times are then for such GPUs."""
    collectives: int
    """Collectives in a step."""
    bytes: int
    """Bytes that a process contributes to them."""
    predictions: tuple[Prediction, ...]


StepTime = Callable[[int, int], Estimate]  # for a number of images and timesteps on one GPU


def forecast(recipe: Recipe, data: DataInfo, asked: Cluster, timed: float | None = None) -> Forecast:
    """Predict from the package's step times. `timed` is the seconds of a whole-batch step on this machine's GPU."""
    table, (traffic, work) = steptimes.table(), counted(recipe, data)
    pace = 1.0

    def alone(batch: int, timesteps: int) -> Estimate:
        found = table.estimate(recipe.network, data.size, work, timesteps=timesteps, batch=batch, memory=recipe.memory)
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
    """Return the number of images of a batch for one GPU; if uneven, for the GPU with the most."""
    size = plan.images_per_step(recipe, data)
    if size < where.world:
        raise ValueError(
            f"{where.world} GPUs need at least as many images in a batch, got {size}; use fewer GPUs, or a "
            "larger batch with --set batch_size=..."
        )
    return -(-size // where.world)


def predict(recipe: Recipe, data: DataInfo, where: Cluster, traffic: Traffic, alone: StepTime) -> Prediction:
    """Predict training on a cluster. `alone` gives the time of a step on one of its GPUs without collectives."""
    own = share(recipe, data, where)
    compute = alone(own, recipe.timesteps)
    statistics, gradients = traffic.seconds(where)
    waiting = statistics + gradients
    step = compute.seconds + waiting
    times = plan.over_epochs(recipe, data, lambda r: alone(own, r.timesteps).seconds + waiting)
    size = plan.images_per_step(recipe, data)
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


def counted(recipe: Recipe, data: DataInfo) -> tuple[Traffic, Work]:
    """Count the collectives and the work of a step of the recipe's network, without allocating memory."""
    with FakeTensorMode():
        network = network_for(recipe, data)
        freeze(network, recipe)
        train_mode(network, recipe)
        return Traffic.of(network, recipe.statistics), Work.of(network, data.shape)


def ladder(asked: Cluster) -> Iterator[Cluster]:
    """Yield clusters with 1, 2, 4, ... GPUs in one node, then with 2, 4, ... nodes, up to the one asked for."""
    for gpus in doubling(asked.gpus):
        yield replace(asked, gpus=gpus, nodes=1)
    for nodes in doubling(asked.nodes):
        if nodes > 1:
            yield replace(asked, nodes=nodes)
