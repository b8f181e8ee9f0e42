"""Every test starts from the same random state and sees NaN wherever memory was never written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

with torch.device("cpu"):  # the first such context notes which functions allocate: before they are replaced below
    torch.empty(0)


@pytest.fixture(autouse=True)
def _same_random_state() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def allocate_nan(*args: Any, **kwargs: Any) -> Tensor:
            memory = allocate(*args, **kwargs)
            with torch.no_grad():
                return memory.fill_(torch.nan) if memory.is_floating_point() else memory

        return allocate_nan

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
