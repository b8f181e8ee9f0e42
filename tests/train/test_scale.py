"""The model of scale by hand, and its collectives against those that a group issues."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from rheobase import models, recipes
from rheobase.data import expected
from rheobase.nn import normalisations
from rheobase.train import scale, steptimes
from rheobase.train.scale import Cluster, Link, Traffic
from rheobase.train.steptimes import Estimate

LINKS = {"inside": Link(1.0, 100.0), "between": Link(7.0, 50.0), "start": 3.0}


@pytest.mark.parametrize(
    ("gpus", "nodes", "gathered", "reduced"),
    [
        (1, 1, 0.0, 0.0),
        (2, 1, 3 + 1 + 200 / 100, 3 + 2 + 200 / 100),
        (8, 1, 3 + 7 + 7 * 200 / 100, 3 + 14 + 2 * 7 / 8 * 200 / 100),
        (1, 4, 3 + 3 * 7 + 3 * 200 / 50, 3 + 2 * 2 * 7 + 2 * 3 / 4 * 200 / 50),
        (8, 3, 3 + 21 + 2 * 7 + 23 * 200 / 50, 3 + 14 + 2 * 2 * 7 + 2 * 23 / 24 * 200 / 50),  # 3 nodes: a tree of two
    ],
)
def test_collectives_of_200_bytes_by_hand(gpus: int, nodes: int, gathered: float, reduced: float) -> None:
    where = Cluster(gpus, nodes, **LINKS)
    assert where.gather(200) == pytest.approx(gathered)
    assert where.reduce(200) == pytest.approx(reduced)


def test_the_slower_link_decides() -> None:
    fast = replace(Cluster(8, 2, **LINKS), between=Link(7.0, 1e6))
    assert fast.bandwidth == 100.0


def test_options_change_the_network_between_nodes() -> None:
    usual, slow = scale.cluster(8, 4), scale.cluster(8, 4, link=1.25, latency=30.0)
    assert usual.between == Link(scale.ADAPTER.latency, 8 * scale.ADAPTER.bandwidth)
    assert (slow.between.latency, slow.between.bandwidth) == pytest.approx((30e-6, 1.25e9))
    assert slow.inside == usual.inside == scale.NVLINK
    assert slow.reduce(2**20) > usual.reduce(2**20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((8, 2, 0.0, None), "link: expected GB/s above 0, got 0"),
        ((8, 2, -1.0, None), "link: expected GB/s above 0, got -1"),
        ((8, 2, float("nan"), None), "link: expected GB/s above 0, got nan"),
        ((8, 2, None, -2.0), "latency: expected microseconds, 0 or more, got -2"),
        ((8, 2, None, float("inf")), "latency: expected microseconds, 0 or more, got inf"),
        ((8, 1, 10.0, None), "link and latency are for the network between nodes; use them with --nodes 2 or more"),
        ((0, 1), "gpus, nodes: expected 1 or more of each, got 0 and 1"),
    ],
)
def test_mistakes(options: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scale.cluster(*options)


def test_settings_double_up_to_what_is_asked() -> None:
    rows = [(c.gpus, c.nodes) for c in scale.ladder(Cluster(6, 3))]
    assert rows == [(1, 1), (2, 1), (4, 1), (6, 1), (6, 2), (6, 3)]
    assert [(c.gpus, c.nodes) for c in scale.ladder(Cluster())] == [(1, 1)]


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


class Collectives(TorchDispatchMode):
    """Notes the bytes that this process hands to every collective."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[int] = []
        self.reduced: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and "allgather" in func.name():
            self.gathered.append(args[1].nbytes)
        elif func.namespace == "c10d":
            assert "allreduce" in func.name()
            self.reduced += [tensor.nbytes for tensor in args[0]]
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning")  # of torch 2.13
def test_the_collectives_are_those_that_a_group_issues(group: dist.ProcessGroup) -> None:
    network = models.build("resnet8")
    for layer in normalisations(network):
        layer.group = group
    with Collectives() as issued:
        network(torch.rand(3, 1, 8, 8), 2).sum().backward()
    counted = Traffic.of(network)
    assert Traffic.of(network, "local") == Traffic((), (), counted.gradients)
    assert [*counted.gathered] == issued.gathered
    assert [*counted.reduced] == issued.reduced[::-1]  # the backward pass comes from the other end
    assert counted.gradients == sum(p.grad.nbytes for p in network.parameters() if p.grad is not None)


def test_what_is_frozen_or_not_normalised_needs_nobody() -> None:
    data = expected("digits")
    head, _ = scale.counted(recipes.get("demo").changed(["freeze=body"]), data)
    assert (head.gathered, head.reduced, head.gradients) == ((), (), 4 * (64 * 10 + 10))
    whole, work = scale.counted(recipes.get("demo"), data)
    assert (len(whole.gathered), len(whole.reduced), whole.collectives, work.layers) == (7, 7, 15, 7)
    with torch.device("meta"):
        network = models.build("ms_resnet18", in_channels=3, image_size=32)
    keeping = [layer for layer in normalisations(network) if hasattr(layer, "running_mean")]
    assert len(Traffic.of(network).reduced) == len(keeping) < len(normalisations(network))


def test_a_recipe_by_hand() -> None:
    """60 images in batches of 12, at 4 timesteps in 3 epochs and at 1 in 2; a step takes 0.5 s and 2 s per unit."""
    phases = ["batch_size=12", "epochs=5", "timesteps=4", "short_timesteps=1", "short_epochs=2"]
    recipe, data = recipes.get("demo").changed(phases), replace(expected("digits"), images=60)
    traffic = Traffic(gathered=(100,), reduced=(50, 50), gradients=200)

    def alone(batch: int, timesteps: int) -> Estimate:
        return Estimate(0.5 + 2 * batch * timesteps, "measured", "by hand")

    found = scale.predict(recipe, data, Cluster(5, 1, **LINKS), traffic, alone)
    statistics = (3 + 4 + 4 * 100 / 100) + 2 * (3 + 8 + 1.6 * 50 / 100)
    gradients = 3 + 8 + 1.6 * 200 / 100
    assert (found.gpus, found.nodes, found.batch) == (5, 1, 3)  # of 12 images, two GPUs have 3
    assert (found.statistics, found.gradients) == (pytest.approx(statistics), pytest.approx(gradients))
    waiting = statistics + gradients
    assert (found.compute, found.step) == (24.5, pytest.approx(24.5 + waiting))
    assert found.images_per_second == pytest.approx(12 / found.step)
    assert found.efficiency == pytest.approx((0.5 + 2 * 12 * 4) / (5 * found.step))
    assert found.epoch == pytest.approx(5 * found.step)
    assert found.recipe == pytest.approx(3 * 5 * found.step + 2 * 5 * (6.5 + waiting))
    unknown = scale.predict(recipe, replace(data, images=0), Cluster(), traffic, alone)
    assert (unknown.epoch, unknown.recipe, unknown.efficiency) == (None, None, 1.0)
    small = scale.predict(recipe, replace(data, images=7), Cluster(2, 1, **LINKS), traffic, alone)
    assert (small.batch, small.epoch) == (4, small.step)


def test_fewer_images_than_gpus() -> None:
    recipe, data = recipes.get("demo"), expected("digits")
    assert scale.share(recipe, data, Cluster(8, 8)) == 1
    with pytest.raises(ValueError, match="65 GPUs need at least as many images in a batch, got 64; use fewer"):
        scale.share(recipe, data, Cluster(5, 13))
    with pytest.raises(ValueError, match="2 GPUs need at least as many images in a batch, got 1"):
        scale.share(recipe, replace(data, images=1), Cluster(2))


def test_a_gpu_of_this_machine_sets_the_pace() -> None:
    recipe, data = recipes.get("cifar10_resnet19_t4"), expected("cifar10")
    usual = scale.forecast(recipe, data, Cluster(2))
    slower = scale.forecast(recipe, data, Cluster(2), timed=3 * usual.predictions[0].step)
    assert (usual.pace, slower.pace) == (None, pytest.approx(3))
    for own, other in zip(usual.predictions, slower.predictions, strict=True):
        assert other.compute == pytest.approx(3 * own.compute)
        assert (other.statistics, other.gradients) == (own.statistics, own.gradients)


def test_measured_trainings_took_what_is_predicted() -> None:
    """An epoch of the loop's benchmark: 3.10 s (results/loop-nvidia-h200.json), the loop's own 1 % included."""
    recipe, data = recipes.get("cifar10_resnet19_t2"), expected("cifar10")
    (one,) = scale.forecast(recipe, data, Cluster()).predictions
    assert (one.kind, one.epoch) == ("measured", pytest.approx(3.10, rel=0.02))
    assert steptimes.table().device == "NVIDIA H200"
