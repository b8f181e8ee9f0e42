"""Every test starts from the same random state and sees NaN wherever memory was never written."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import plugins

with torch.device("cpu"):  # the first such context notes which functions allocate: before they are replaced below
    torch.empty(0)


# A shell lets what it starts in the background ignore Ctrl-C, and so would the commands that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start commands in other folders, too; with PYTHONPATH=src, these have to find the package.
if "PYTHONPATH" in os.environ:
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))

# Without a GPU, Triton's kernels run in its interpreter; it reads this when a kernel is defined.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def triton_device() -> str:
    """Where a test of Triton kernels puts its tensors; without Triton it is skipped."""
    pytest.importorskip("triton", reason="needs Triton: install rheobase[kernels]")
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _own_shelves(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test registers or loads is gone after it."""
    before = [(shelf, dict(shelf.parts), dict(shelf.origins)) for shelf in plugins.SHELVES]
    monkeypatch.setattr(plugins, "_loaded", {})
    yield
    for shelf, parts, origins in before:
        shelf.restore(parts, origins)
    made_by_tests = f"{tmp_path_factory.getbasetemp()}{os.sep}"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(made_by_tests):
            del sys.modules[name]


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
