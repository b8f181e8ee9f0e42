"""Gradients of a group: which are added up, and how they lie in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rheobase.train.collectives import Collective, Collectives
from rheobase.train.gradients import Gradients


@pytest.fixture
def group(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def parameters() -> dict[str, nn.Parameter]:
    kernel = torch.randn(5, 3, 2, 2).to(memory_format=torch.channels_last)
    return {
        "kernel": nn.Parameter(kernel),
        "bias": nn.Parameter(torch.randn(7)),
        "unused": nn.Parameter(torch.randn(2)),
        "frozen": nn.Parameter(torch.randn(3), requires_grad=False),
        "double": nn.Parameter(torch.randn(4, dtype=torch.float64)),
    }


def loss(named: dict[str, nn.Parameter]) -> Tensor:
    return sum(((i + 2) * p.pow(2).sum() for i, (name, p) in enumerate(named.items()) if name != "unused"))  # type: ignore[return-value]


def test_they_are_one_collective_for_each_type_and_lie_as_their_parameters(group: dist.ProcessGroup) -> None:
    named = parameters()
    gradients = Gradients(named.values(), group)
    for _ in range(2):
        for p in named.values():
            p.grad = None
        with Collectives() as seen, gradients.summed():
            loss(named).backward()
        assert seen.calls == [Collective("all_reduce", 4 * (64 + 32 + 32)), Collective("all_reduce", 8 * 32)]
        for name, factor in (("kernel", 2), ("bias", 3), ("double", 6)):
            p = named[name]
            assert p.grad is not None
            torch.testing.assert_close(p.grad, 2 * factor * p.detach())
            assert p.grad.stride() == p.stride()
        assert named["unused"].grad is None
        assert named["frozen"].grad is None


def test_a_backward_pass_that_fails_sends_nothing(group: dist.ProcessGroup) -> None:
    named = parameters()
    gradients = Gradients(named.values(), group)
    with Collectives() as seen, pytest.raises(RuntimeError, match="broken off"), gradients.summed():
        raise RuntimeError("broken off")
    assert seen.calls == []
    with gradients.summed():
        loss(named).backward()
    torch.testing.assert_close(named["bias"].grad, 6 * named["bias"].detach())
