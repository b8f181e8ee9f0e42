"""Measure, before training, what a group of processes on one machine will wait for; used by `benchmarks.scale`.

Collectives cut the step of a group into stretches. At each collective, all processes wait for the slowest, and then for
gloo. So two things are measured:

- Stretches, in processes that run at the same time but do not wait for each other: each issues the collectives of its
  step in a group of its own. The slowest process varies, and a group waits for the slowest one in every stretch.
- Collectives, right after work like that of the network. OpenMP threads spin on their cores for a while after each
  operation, and gloo's threads have to get past them. (For comparison, they are also measured between idle processes.)

A step contains all of them in sequence, so means count, not medians. Each is the mean of one epoch or round, and the
result is the median of these, as for the times of a run: one disturbance of the machine does not matter.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rheobase.data import Dataset
from rheobase.data.feed import Feed
from rheobase.kernels import group as statistics
from rheobase.recipes import Recipe
from rheobase.train import distributed
from rheobase.train.optimizers import make_optimizer
from rheobase.train.runs import channels_last, network_for
from rheobase.train.scale import Link
from rheobase.train.step import make_step

CPU = torch.device("cpu")
SMALL, LARGE = 2**10, 2**21  # values in the timed collectives
ROUNDS, REPEATS = 3, 30  # for each collective
FEW = 2  # images that go through the network before each collective


class Rehearsal(NamedTuple):
    """Seconds of a step of several processes without gloo, and the speed of gloo."""

    beside: float
    """A step in which no process waits for another: the mean over all processes."""
    slowest: float
    """A step in which all wait for the slowest process at each collective."""
    link: Link
    """A link with which small collectives take as long in the model as with gloo after work."""
    idle_latency: float
    """Latency between idle processes."""


def rehearse(recipe: Recipe, data: Dataset) -> Rehearsal:
    """Measure in every process of a group. `recipe.batch_size` is its share of a batch, and `data` are its images."""
    torch.manual_seed(0)
    network = channels_last(network_for(recipe, data.info))
    few = torch.rand(FEW, *data.info.shape)

    @torch.no_grad()
    def work() -> None:
        network(few, recipe.timesteps)

    idle = measured_latency(lambda: None)
    link = Link(measured_latency(work), measured_bandwidth(idle))
    return Rehearsal(*in_steps(everyone(measured_stretches(network, recipe, data))), link, idle)


def in_steps(stretches: Tensor) -> tuple[float, float]:
    """Return `beside` and `slowest` of a rehearsal, from seconds [processes, epochs, steps, collectives]."""
    return typical(stretches.mean(0).sum(-1)), typical(stretches.amax(0).sum(-1))


def typical(seconds: Tensor) -> float:
    """Return the median over rounds of the mean over repeats, for seconds [rounds, repeats]."""
    return seconds.mean(1).quantile(0.5).item()


def everyone(own: Tensor) -> Tensor:
    """Return the tensors of all processes of the group: [processes, ...]."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.stack(parts)


def measured_stretches(network: nn.Module, recipe: Recipe, data: Dataset) -> Tensor:
    """Measure the seconds of this process between the collectives of a step: [epochs, steps, collectives].

    All processes start a step together, so that they do the same work at the same time, as in their group. The time
    before the first collective and the time after the last are one stretch, as no process waits between two steps.
    """
    alone, _ = dist.new_subgroups(1)
    assert alone is not None
    summed = distributed.join(network, alone, recipe.statistics)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = make_step(network, make_optimizer(network, recipe, CPU), scaler, recipe, recipe.timesteps, summed=summed)
    feed = Feed(data, recipe, CPU, torch.float32)
    epochs = []
    for epoch in range(recipe.epochs):
        batches, steps = feed.training(epoch), []
        for _ in range(feed.steps):
            dist.barrier()
            with collectives_noted() as moments:
                step(*next(batches))
            first, *others = torch.tensor(moments, dtype=torch.float64).view(-1, 2).diff().flatten().tolist()
            steps.append([first + others.pop(), *others])
        epochs.append(steps)
    return torch.tensor(epochs[1:], dtype=torch.float64)


@contextmanager
def collectives_noted() -> Iterator[list[float]]:
    """Record times: the start of the context, the call and return of every collective in it, and its end."""
    moments = []

    def noting(collective: Callable[..., Any]) -> Callable[..., None]:
        def noted(*arguments: Any, **options: Any) -> None:
            moments.append(time.perf_counter())
            collective(*arguments, **options)
            moments.append(time.perf_counter())

        return noted

    gather, reduce = (noting(collective) for collective in (statistics._all_gather, dist.all_reduce))
    with patch.object(statistics, "_all_gather", gather), patch.object(dist, "all_reduce", reduce):
        moments.append(time.perf_counter())
        yield moments
        moments.append(time.perf_counter())


def measured_latency(work: Callable[[], None]) -> float:
    """Measure the latency of a message in this process's group, in seconds, right after all processes did `work`."""
    assert dist.group.WORLD is not None
    few, group = torch.zeros(SMALL), dist.group.WORLD
    gathering = _seconds(lambda: statistics.gathered(few, group), work)
    reducing = _seconds(lambda: dist.all_reduce(few), work)
    return (gathering + reducing) / (3 * (dist.get_world_size() - 1))  # the number of messages in the model


def measured_bandwidth(latency: float) -> float:
    """Measure bytes per second between idle processes. Large messages take longer than threads spin."""
    world, many = dist.get_world_size(), torch.zeros(LARGE)
    sending = _seconds(lambda: dist.all_reduce(many), lambda: None) - 2 * (world - 1) * latency
    return 2 * (world - 1) / world * many.nbytes / sending


def _seconds(collective: Callable[[], Any], work: Callable[[], None]) -> float:
    """Measure from the last call to the last return of all processes, which share the clock of the machine."""
    moments = torch.empty(ROUNDS, REPEATS, 2, dtype=torch.float64)
    for times in moments.flatten(0, 1):
        dist.barrier()
        work()
        times[0] = time.perf_counter()
        collective()
        times[1] = time.perf_counter()
    called, returned = everyone(moments).amax(0).unbind(-1)
    return typical(returned - called)
