"""What a group will wait for: by hand, with a clock of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import rehearsal, scale
from rheobase import recipes
from rheobase.kernels import group
from rheobase.models import resnet8
from rheobase.train import distributed
from rheobase.train.optimizers import make_optimizer
from tests.train.test_distributed import CPU, join, run_team


class Clock:
    """Stands still but for what takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, function: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
        """`function`, which takes so long."""

        def slow(*arguments: Any, **options: Any) -> Any:
            self.now += seconds
            return function(*arguments, **options)

        return slow


def test_a_group_pays_for_the_last_one_of_every_stretch() -> None:
    stretches = torch.tensor([[[[1.0, 5.0]], [[2.0, 2.0]]], [[[4.0, 1.0]], [[2.0, 3.0]]]])  # 2 processes, 2 epochs
    beside, slowest = rehearsal.in_steps(stretches)
    assert beside == pytest.approx((5.5 + 4.5) / 2)
    assert slowest == pytest.approx((4 + 5 + 2 + 3) / 2)


def test_one_bad_round_does_not_decide() -> None:
    assert rehearsal.typical(torch.tensor([[1.0, 3.0], [1.0, 1.0], [90.0, 10.0]])) == 2.0


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """In a group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In the place of that of the machine."""
    found = Clock()
    monkeypatch.setattr(rehearsal.time, "perf_counter", found)
    return found


@pytest.mark.usefixtures("alone")
def test_stretches_are_a_step_without_its_collectives(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes time here but a collective, the first and the last layer, and the end of the step."""
    recipe = recipes.get("demo").changed(["image_size=8", "timesteps=1", "epochs=3", "batch_size=5"])
    network, data = resnet8(in_channels=3), scale.noise(recipe, 10)
    optimizer = make_optimizer(network, recipe, CPU)
    monkeypatch.setattr(optimizer, "step", clock.taking(7, optimizer.step))
    monkeypatch.setattr(rehearsal, "make_optimizer", lambda *_: optimizer)
    monkeypatch.setattr(dist, "all_reduce", clock.taking(1000, dist.all_reduce))
    monkeypatch.setattr(group, "_all_gather", clock.taking(1000, group._all_gather))
    network.stem.register_forward_hook(clock.taking(20))
    network.head.register_forward_hook(clock.taking(3))
    stretches = rehearsal.measured_stretches(network, recipe, data)
    assert stretches.shape == (2, 2, 15)
    assert (stretches == torch.tensor([27.0, *6 * [0.0], 3.0, *7 * [0.0]])).all()
    assert dist.all_reduce(torch.ones(1)) is None
    assert clock() == 1000 * (1 + 6 * 15) + 6 * (27 + 3)


def measure_link(rank: int, world: int, port: int, folder: Path) -> None:
    """The second process works for 50 s before its collectives; they take 1 s and 2 s, and 10 s if they are large."""
    join(rank, world, port)
    clock, reduce, gathered = Clock(), dist.all_reduce, group.gathered
    rehearsal.time = SimpleNamespace(perf_counter=clock)  # type: ignore[assignment]
    rehearsal.REPEATS = 2
    wait = 50 - 50 * rank

    def gather(tensor: Tensor, own: dist.ProcessGroup) -> None:
        clock.now += wait + 1
        gathered(tensor, own)

    def add(tensor: Tensor) -> None:
        clock.now += wait + (2 if tensor.numel() == rehearsal.SMALL else 10)
        reduce(tensor)

    group.gathered, dist.all_reduce = gather, add
    with distributed.team(CPU):
        latency = rehearsal.measured_latency(clock.taking(50 * rank))
        clock.now, wait = 0.0, 0
        torch.save([latency, rehearsal.measured_bandwidth(latency)], folder / f"{rank}.pt")


def test_a_collective_takes_what_it_takes_once_all_are_there(tmp_path: Path) -> None:
    run_team(measure_link, 2, tmp_path)
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt") == [1.0, 4 * rehearsal.LARGE / 8]
