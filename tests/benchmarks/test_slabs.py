"""The soma slab by slab, in Triton's interpreter: it must compute what it computes on whole tensors."""

import pytest
import torch

from benchmarks.contenders import Setting
from benchmarks.soma import Shape, received


@pytest.mark.parametrize("branches", [1, 2])
def test_slabs_give_the_same_results(branches: int, triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import slabs

    monkeypatch.setattr(slabs, "WIDTHS", (8, 3))
    torch.manual_seed(0)
    setting, shape = Setting(timesteps=2, batch=3, device=triton_device), Shape((2, 3, 10, 4, 5), branches, False)
    found = list(slabs.tried(shape, setting, lambda call: 2.0))
    assert [(row["direction"], row["channels"]) for row in found] == [
        (direction, width) for width in (10, 8, 3) for direction in ("forward", "backward")
    ]
    assert all(row["difference"] < 1e-6 for row in found), "also the last slab, which is narrower"
    size = 2 * 3 * 10 * 4 * 5 * 4
    assert [row["read_again_bytes"] for row in found[:3]] == [
        branches * size, (branches + 1) * size, branches * size * 8 // 10,
    ]  # fmt: skip


def test_the_whole_tensor_is_what_the_network_computes(triton_device: str) -> None:
    from benchmarks import slabs
    from rheobase.kernels import triton as kernels

    torch.manual_seed(0)
    xs, grad = received(Shape((2, 3, 10, 4, 5), 2, False), Setting(timesteps=2, batch=3, device=triton_device))
    passes = slabs.Passes(xs, grad, 4)
    whole = kernels.statistics(xs)[:-1].chunk(2)
    ones = torch.ones(2, 10, device=triton_device)
    constants = slabs.Constants(slabs.DECAY, slabs.V_TH, slabs.WIDTH, slabs.EPS)
    neurons = slabs.Neurons(ones, torch.zeros_like(ones), *whole, None, constants)
    spikes, _ = kernels.forward(xs, neurons, False)
    assert 0 < spikes.mean() < 1
    torch.testing.assert_close(passes.forward()[0], spikes)
    sums, du = kernels.backward_sums(grad, xs, neurons)
    torch.testing.assert_close(
        passes.backward(), kernels.backward_inputs(grad, xs, neurons, du, sums, passes.count, ())
    )
