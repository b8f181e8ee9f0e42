"""Statistics of parts, joined, are those of the whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rheobase import functional, kernels
from rheobase.kernels import fused
from rheobase.kernels.group import joined_moments


@pytest.fixture(params=["cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch.device(request.getfixturevalue("triton_device") if request.param == "triton" else "cpu"):
        yield request.param


def law(xs: Sequence[Tensor]) -> Tensor:
    """What the operator `statistics` finds."""
    means, variances = zip(*map(functional.moments, xs), strict=True)
    return torch.stack([*means, *variances, torch.full_like(means[0], xs[0].numel() / xs[0].shape[2])])


def branches(n: int, dtype: torch.dtype, mean: float = 0.0) -> list[Tensor]:
    return [mean + (1 + i) * torch.randn(2, 7, 130, 3, 1, dtype=dtype) for i in range(n)]


def parts(xs: list[Tensor], images: list[int]) -> Tensor:
    return torch.stack([law(part) for part in zip(*(x.split(images, dim=1) for x in xs), strict=True)])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("images", [[7], [3, 4], [1, 2, 4]], ids=str)
def test_parts_joined_are_the_whole(backend: str, n: int, images: list[int]) -> None:
    xs = branches(n, torch.float64)
    joined = fused.join(parts(xs, images), backend)
    torch.testing.assert_close(joined[:-1], law(xs)[:-1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(joined[-1], torch.full_like(joined[-1], 1 / 42))


def test_nothing_cancels(backend: str) -> None:
    xs = branches(2, torch.float32, mean=1000.0)
    whole = law([x.double() for x in xs]).float()
    torch.testing.assert_close(fused.join(parts(xs, [2, 5]), backend)[:-1], whole[:-1], rtol=1e-4, atol=0)


@pytest.mark.parametrize("static", [False, True])
def test_values_are_counted_at_every_step(backend: str, static: bool) -> None:
    x = torch.randn(4, 3, 5, 2, 1)
    x = x[:1].expand_as(x) if static else x
    assert (fused.statistics([x, x], backend)[-1] == 4 * 3 * 2).all()


@contextmanager
def group_of_one(folder: Path, device: str) -> Iterator[dist.ProcessGroup]:
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_a_group_of_one_fires_as_one_alone(backend: str, tmp_path: Path) -> None:
    xs = [torch.randn(4, 3, 5, 2, 1, dtype=torch.float64) for _ in range(2)]
    weight, bias = torch.rand(2, 5, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    upstream = torch.randn_like(xs[0])

    def results(group: dist.ProcessGroup | None) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (weight, bias, *xs)]
        w, b, *inputs = leaves
        neuron = {"decay": 0.3, "v_th": 0.6, "width": 0.9, "eps": 1e-4}
        spikes, moments = kernels.fire(inputs, w, b, **neuron, group=group, backend=backend)
        spikes.backward(upstream)
        return [spikes, *moments, *(x.grad for x in leaves if x.grad is not None)]

    with group_of_one(tmp_path, xs[0].device.type) as group:
        for own, other in zip(results(group), results(None), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


def test_moments_of_a_group_have_derivatives_of_any_order(tmp_path: Path) -> None:
    with group_of_one(tmp_path, "cpu") as group:
        xs = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        torch.testing.assert_close(torch.cat(joined_moments(xs, group)), law(xs)[:-1])
        assert torch.autograd.gradcheck(lambda *xs: joined_moments(xs, group), xs)
        assert torch.autograd.gradgradcheck(lambda *xs: joined_moments(xs, group), xs)
