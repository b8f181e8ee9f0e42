"""One bit per spike, and back."""

import pytest
import torch
from torch import Tensor

from rheobase.kernels import fused
from rheobase.kernels.packing import are_marked, mark_spikes, neurons_per_byte, pack, pack_once, unpack


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


def last(x: Tensor) -> Tensor:
    """The same values with channels last."""
    return x.movedim(2, -1).contiguous().movedim(-1, 2)


NEURONS_PER_BYTE = [  # of spikes [T, N, C, ...]
    ((1, 2, 5, 4, 3), 8),
    ((2, 2, 5, 2, 3), 4),
    ((4, 3, 7, 2, 5), 2),
    ((8, 3, 5, 1, 7), 1),
    ((4, 6, 5), 2),
    ((2, 3, 130, 4, 5), 4),  # several programs in both directions
    ((4, 3, 7, 3, 5), 0),  # 45 rows cannot be halved
    ((3, 2, 5, 4, 2), 0),  # three timesteps do not fill a byte
]


@pytest.mark.parametrize(("shape", "expected"), NEURONS_PER_BYTE, ids=str)
@pytest.mark.parametrize("branches", [1, 2])
def test_a_soma_packs_what_it_fires(shape: tuple[int, ...], expected: int, branches: int, triton_device: str) -> None:
    xs = [last(torch.randn(shape, device=triton_device)) for _ in range(branches)]
    vector = torch.rand(branches, shape[2], device=triton_device)
    neurons = (vector, vector, vector - 0.5, vector + 0.5, None, *fused.Constants(0.3, 0.6, 0.9, 1e-4))
    spikes, nothing = fused.forward(xs, *neurons, False, "triton")
    assert len(nothing) == 0
    assert 0 < spikes.mean() < 1
    again, bits = fused.forward(xs, *neurons, True, "triton")
    assert torch.equal(again, spikes)
    assert neurons_per_byte(spikes) == expected
    assert torch.equal(bits, pack(spikes, "cpu")[0][: None if expected else 0])


def test_bytes_hold_all_timesteps_only_with_channels_last() -> None:
    spikes = random_spikes((4, 3, 7, 2, 5), torch.float32, "cpu")
    assert neurons_per_byte(last(spikes)) == 2
    assert neurons_per_byte(spikes) == 0
    assert neurons_per_byte(last(spikes)[:1].expand(4, -1, -1, -1, -1)) == 0


def test_bits_that_come_with_spikes_are_used() -> None:
    spikes = last(random_spikes((4, 3, 7, 2, 5), torch.float32, "cpu"))
    bits, form = pack(spikes, "cpu")
    mark_spikes(spikes, bits)
    assert pack_once(spikes, "cpu") == (bits, form)
    spikes.zero_()
    assert not pack_once(spikes, "cpu")[0].any()


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
