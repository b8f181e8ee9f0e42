"""Launches of Triton kernels; or their compilation alone, of many at once.

A kernel that nobody has used on this machine takes about a second: Triton compiles it, and a C compiler what launches
it. A first step would wait for each in turn.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton

_ahead: ContextVar[list[Any] | None] = ContextVar("ahead", default=None)


def on_grid(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """What launches the kernel on this grid; inside of `compiled_ahead`, what has it compiled."""
    found = _ahead.get()
    return kernel[grid] if found is None else lambda *of, **how: found.append(kernel.warmup(*of, grid=grid, **how))


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """Compile all kernels that are launched inside, and make them ready on the current GPU.

    Nothing runs, so the tensors need no memory: those of the device "meta" will do. A kernel that cannot be compiled is
    left for the launch that needs it, which says so.
    """
    device = torch.cuda.current_device()  # which a thread does not inherit
    found: list[Any] = []
    with ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        with triton.AsyncCompileMode(pool, ignore_errors=True):
            token = _ahead.set(found)
            try:
                yield
            finally:
                _ahead.reset(token)
        list(pool.map(_load, dict.fromkeys(found)))


def _load(kernel: Any) -> None:
    compiled = kernel.result(ignore_errors=True) if isinstance(kernel, triton.FutureKernel) else kernel
    if compiled is not None:
        compiled.run  # noqa: B018 (a property, which builds what launches the kernel)
