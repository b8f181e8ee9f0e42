"""Writing beside the training: what is written is what was there, and nothing that goes wrong is lost."""

import threading

import pytest
import torch

from rheobase.train.checkpoint import Tensors
from rheobase.train.writing import Writer

CPU = torch.device("cpu")


def some() -> dict[str, Tensors]:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {
        "weights": {"a": image, "b": torch.tensor(7.5)},
        "training": {"n": torch.arange(11), "b": torch.empty(0, 2)},
    }


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", id="on a gpu")])
def test_what_is_written_is_what_was_there(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    tensors = {group: {name: t.to(device) for name, t in own.items()} for group, own in some().items()}
    expected = {group: {name: t.clone() for name, t in own.items()} for group, own in tensors.items()}
    changed, found = threading.Event(), list[dict[str, Tensors]]()

    def write(copies: dict[str, Tensors]) -> None:
        changed.wait()
        found.append({group: {name: t.clone() for name, t in own.items()} for group, own in copies.items()})

    writer = Writer(torch.device(device))
    writer.begin(tensors, write)
    for own in tensors.values():
        for tensor in own.values():
            tensor += 1  # as the next step does
    assert writer.busy
    changed.set()
    writer.wait()
    assert not writer.busy
    for group, own in expected.items():
        for name, tensor in own.items():
            assert found[0][group][name].is_contiguous()
            assert torch.equal(found[0][group][name], tensor.cpu()), name


def test_one_waits_for_the_one_before() -> None:
    writer, first, order = Writer(CPU), threading.Event(), list[str]()

    def slow(_: dict[str, Tensors]) -> None:
        first.wait()
        order.append("first")

    writer.begin(some(), slow)
    threading.Timer(0.1, first.set).start()
    writer.begin(some(), lambda _: order.append("second"))
    writer.close()
    assert order == ["first", "second"]


@pytest.mark.parametrize("hears", ["look", "wait", "begin"])
def test_an_error_of_the_thread_is_raised_once(hears: str) -> None:
    def full(_: dict[str, Tensors]) -> None:
        raise OSError("no space")

    writer = Writer(CPU)
    writer.begin(some(), full)
    while writer.busy:
        pass
    with pytest.raises(OSError, match="no space"):
        writer.begin(some(), full) if hears == "begin" else getattr(writer, hears)()
    writer.look()
    writer.wait()
    writer.close()


def test_memory_is_kept_from_one_to_the_next() -> None:
    writer = Writer(CPU)
    writer.reserve({"a": torch.zeros(1000)})
    place = writer.memory.data_ptr()
    for _ in range(2):
        writer.begin(some(), lambda _: None)
    assert writer.memory.data_ptr() == place
    writer.close()
