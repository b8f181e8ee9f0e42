import pytest
import torch

from rheobase.train.switches import cudnn


def test_switches_are_as_they_were_afterwards_also_after_an_error() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32

    def fail() -> None:
        with cudnn(benchmark=not before[0], allow_tf32=not before[1]):
            assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (not before[0], not before[1])
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        fail()
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == before
