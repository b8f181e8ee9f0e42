"""One bit per spike, and back."""

import pytest
import torch
from torch import Tensor

from rheobase.kernels.packing import are_marked, mark_spikes, pack, pack_once, unpack


@pytest.fixture(params=["cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def device(backend: str, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("triton_device") if backend == "triton" else "cpu"


def random_spikes(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    return (torch.rand(shape, device=device) < 0.3).to(dtype)


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (2, 3, 5, 7, 4), (1031,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_comes_back_as_it_was(backend: str, device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    spikes = random_spikes(shape, dtype, device)
    bits, packed = pack(spikes, backend)
    assert bits.dtype == torch.uint8
    assert bits.numel() == -(-spikes.numel() // 8)
    again = unpack(bits, packed, backend)
    assert again.dtype == dtype
    assert torch.equal(again, spikes)


def test_keeps_the_memory_order(backend: str, device: str) -> None:
    spikes = random_spikes((6, 5, 4, 3), torch.float32, device).to(memory_format=torch.channels_last)
    again = unpack(*pack(spikes, backend), backend)
    assert again.stride() == spikes.stride()
    assert torch.equal(again, spikes)


def test_a_tensor_with_gaps_is_packed_without_them(backend: str, device: str) -> None:
    spikes = random_spikes((6, 10), torch.float32, device)[:, ::2]
    assert torch.equal(unpack(*pack(spikes, backend), backend), spikes)


def test_both_backends_write_the_same_bits(triton_device: str) -> None:
    spikes = random_spikes((2, 3, 5, 7, 4), torch.bfloat16, triton_device)
    assert torch.equal(pack(spikes, "cpu")[0], pack(spikes, "triton")[0])


def test_spikes_of_several_synapses_are_packed_once() -> None:
    spikes = random_spikes((2, 3, 5), torch.float32, "cpu")
    bits, _ = pack_once(spikes, "cpu")
    assert pack_once(spikes, "cpu")[0] is bits
    spikes.zero_()
    changed, _ = pack_once(spikes, "cpu")
    assert not changed.any()


def test_a_mark_holds_for_views_and_ends_with_a_change() -> None:
    spikes = random_spikes((3, 4, 5), torch.float64, "cpu")
    view = spikes[1:].transpose(0, 1)
    assert not are_marked(spikes)
    mark_spikes(spikes)
    assert are_marked(spikes)
    assert are_marked(view)
    assert are_marked(spikes.view(12, 5)[:, 2])
    assert not are_marked(spikes.clone())
    assert not are_marked(spikes.view(torch.float32))  # the same bytes read as other numbers
    view[0, 0] = 2
    assert not are_marked(spikes)
    assert not are_marked(view)
    mark_spikes(spikes[0])
    assert not are_marked(spikes)
    assert not are_marked(spikes[1])
