"""What a group of processes on one machine will wait for, measured before it trains: for `benchmarks.scale`.

Collectives cut the step of a group into stretches. At each collective all wait for the process that comes last, and
then for gloo. So two things are measured:

- Stretches, in processes that work beside each other and wait for nobody: each issues the collectives of its step in a
  group of its own. Now one is late and now another, and a group pays for the last one of every stretch.
- Collectives, right after work of the network's kind. The threads of OpenMP spin on their cores for a while after each
  operation, and those of gloo have to get past them. (Between idle processes it is measured too, to compare.)

A step has all of them one after the other, so means count, not medians. But each is the mean of one epoch, or round,
and the median of those is taken, as of a training's own times: one disturbance of the machine does not decide.
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
SMALL, LARGE = 2**10, 2**21  # values of the collectives that are timed
ROUNDS, REPEATS = 3, 30  # of each of them
FEW = 2  # images that go through the network before each of them


class Rehearsal(NamedTuple):
    """Seconds of a step of processes that never wait for gloo, and what gloo takes."""

    beside: float
    """Where nobody waits for another either: the mean of all processes."""
    slowest: float
    """Where everybody waits at each collective for the last one."""
    link: Link
    """With which small collectives of the model take what those of gloo take after work."""
    idle_latency: float
    """The latency without work."""


def rehearse(recipe: Recipe, data: Dataset) -> Rehearsal:
    """In every process of a group, which gets its share of a batch: `recipe.batch_size` images of its own `data`."""
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
    """`beside` and `slowest` of a rehearsal, from seconds [processes, epochs, steps, collectives]."""
    return typical(stretches.mean(0).sum(-1)), typical(stretches.amax(0).sum(-1))


def typical(seconds: Tensor) -> float:
    """Of [rounds, repeats]: the median of the means of all rounds."""
    return seconds.mean(1).quantile(0.5).item()


def everyone(own: Tensor) -> Tensor:
    """What all processes of the group have: [processes, ...]."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.stack(parts)


def measured_stretches(network: nn.Module, recipe: Recipe, data: Dataset) -> Tensor:
    """Seconds of this process between the collectives of a step: [epochs, steps, collectives].

    All begin a step together, so that they are at the same work at the same time, as they will be in their group. What
    is before the first collective and what is after the last one are a single stretch: nobody waits between two steps.
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
    """The moments of its beginning, of the call and the return of every collective in it, and of its end."""
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
    """Of a message in this process's group, seconds, where collectives come after everybody's `work`."""
    assert dist.group.WORLD is not None
    few, group = torch.zeros(SMALL), dist.group.WORLD
    gathering = _seconds(lambda: statistics.gathered(few, group), work)
    reducing = _seconds(lambda: dist.all_reduce(few), work)
    return (gathering + reducing) / (3 * (dist.get_world_size() - 1))  # so many messages have both by the model


def measured_bandwidth(latency: float) -> float:
    """Bytes per second between idle processes: large messages are under way for longer than threads spin."""
    world, many = dist.get_world_size(), torch.zeros(LARGE)
    sending = _seconds(lambda: dist.all_reduce(many), lambda: None) - 2 * (world - 1) * latency
    return 2 * (world - 1) / world * many.nbytes / sending


def _seconds(collective: Callable[[], Any], work: Callable[[], None]) -> float:
    """From the call of the process that comes last to the last return; their clock is that of the machine."""
    moments = torch.empty(ROUNDS, REPEATS, 2, dtype=torch.float64)
    for times in moments.flatten(0, 1):
        dist.barrier()
        work()
        times[0] = time.perf_counter()
        collective()
        times[1] = time.perf_counter()
    called, returned = everyone(moments).amax(0).unbind(-1)
    return typical(returned - called)
