"""What a step says to other processes, counted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rheobase.models import resnet8
from rheobase.models.blocks import GlobalHead
from rheobase.nn import Conv2d, ReferenceSoma, Soma, TdBN, normalisations
from rheobase.train import distributed
from rheobase.train.collectives import Collective, Collectives
from rheobase.train.optimizers import make_optimizer
from rheobase.train.step import make_step
from tests.train.test_distributed import CPU, batch, join, recipe, run_team


def collectives(network: nn.Module, n: int, group: dist.ProcessGroup) -> list[Collective]:
    """Of one step."""
    r, (images, labels) = recipe(), batch(n)
    summed = distributed.join(network, group)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = make_step(network, make_optimizer(network, r, CPU), scaler, r, 3, summed=summed)
    with Collectives() as seen:
        step(images, labels, 0.5)
    return seen.calls


class Currents(nn.Module):
    """Two branches that are normalised before neurons see their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Conv2d(1, 7, 3) for _ in range(2))
        self.norm, self.soma, self.head = TdBN(7, branches=2), Soma(7, normalize=False), GlobalHead(7, 8, 10, Soma)

    def forward(self, x: Tensor, timesteps: int) -> Tensor:
        x = x.expand(timesteps, *x.shape)
        return self.head(self.soma(self.norm(*(conv(x) for conv in self.convs))))


COUNTED: dict[str, Callable[[], nn.Module]] = {
    "somas": resnet8,
    "neurons of one's own": partial(resnet8, soma=ReferenceSoma),
    "currents": Currents,
}


def count_member(rank: int, world: int, port: int, folder: Path) -> None:
    join(rank, world, port)
    with distributed.team(CPU):
        assert dist.group.WORLD is not None
        found = {name: collectives(make().double(), 5 + rank, dist.group.WORLD) for name, make in COUNTED.items()}
        torch.save({name: [tuple(call) for call in calls] for name, calls in found.items()}, folder / f"{rank}.pt")


def test_a_step_says_as_little_as_possible_alike_in_a_group_of_one(tmp_path: Path) -> None:
    run_team(count_member, 2, tmp_path)
    members = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        for name, make in COUNTED.items():
            network = make().double()
            calls = collectives(network, 5, dist.group.WORLD)
            statistics, (gradients,) = calls[:-1], calls[-1:]
            layers = len(normalisations(network)) - (name == "currents")  # one of them normalises nothing
            assert [call.name for call in statistics] == ["all_gather"] * layers + ["all_reduce"] * layers
            assert max(call.bytes for call in statistics) <= 8 * 5 * 64, "two branches of 64 channels, and a count"
            values = [p.numel() for p in network.parameters()]
            assert gradients.name == "all_reduce"
            assert 8 * sum(values) <= gradients.bytes < 8 * sum(n + 32 for n in values)
            for member in members:
                assert [called for called, _ in member[name]] == [call.name for call in calls]
            if name == "somas":  # in others, the gradients of statistics are as many as there are members
                assert members[0][name] == members[1][name] == calls
    finally:
        dist.destroy_process_group()
