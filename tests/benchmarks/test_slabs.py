"""Passes over slabs of channels, in Triton's interpreter: they compute what the passes over everything do."""

import pytest
import torch

from benchmarks.contenders import Setting
from benchmarks.soma import Shape, Work, work


def exact(shape: Shape, device: str) -> Work:
    """Random inputs in float64, in which no spike flips."""
    found = work(shape, Setting(timesteps=3, batch=2, device=device), "triton")
    weight, bias, mean, var, *rest = found.neurons
    learnt = (torch.rand_like(weight) + 0.5, torch.randn_like(bias), mean, var)  # different in every channel
    return Work(
        [x.double() for x in found.xs], found.grad.double(), found.neurons._make([*(p.double() for p in learnt), *rest])
    )


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_slabs_give_the_same_results(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, direction: str, branches: int
) -> None:
    from benchmarks import pointwise, slabs

    monkeypatch.setattr(pointwise, "seconds", lambda call, device: 2.0)
    monkeypatch.setattr(slabs, "WIDTHS", (16, 32, 64))  # of 40 channels: the last slab is narrower; 64 is no slab
    given = exact(Shape((3, 2, 40, 5, 7), branches, static=False), triton_device)
    found = list(pointwise.compared(getattr(slabs, direction)(given, triton_device), triton_device))
    ways = [row["way"] for row in found if not row["way"].endswith("overlapping")]  # which only a GPU does
    assert ways == ["whole", "slabs of 16", "slabs of 32"]
    assert all(row["difference"] < 1e-12 for row in found), found


def test_slabs_write_every_channel_once(triton_device: str) -> None:
    from benchmarks import slabs

    written = torch.zeros(40)
    for slab in slabs.slabs(40, 16):
        written[slab] += 1
    assert written.eq(1).all()
