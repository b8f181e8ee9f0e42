import pytest
import safetensors.torch
import torch

from rheobase.train import tensorfile


def test_the_file_is_what_safetensors_reads() -> None:
    """All kinds of numbers, no dimensions, no elements, another memory order, and two names for one memory."""
    tensors = {f"of {dtype}": torch.arange(2, 8).to(dtype).view(2, 3) for dtype in tensorfile.NAMES}
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors |= {
        "one": torch.tensor(7.5),
        "none": torch.empty(0, 3),
        "image": image,
        "again": image,
        "ünusual": image[1],
    }
    found = safetensors.torch.load(b"".join(tensorfile.chunks(tensors)))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name


def test_nothing_is_copied_of_plain_tensors() -> None:
    tensor = torch.zeros(3)
    chunks = tensorfile.chunks({"a": tensor})
    tensor += 1
    assert safetensors.torch.load(b"".join(chunks))["a"].tolist() == [1, 1, 1]


def test_what_it_cannot_hold_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^phase has the type torch\.complex64, which a checkpoint cannot hold; convert it$"
    ):
        tensorfile.chunks({"phase": torch.zeros(2, dtype=torch.complex64)})
