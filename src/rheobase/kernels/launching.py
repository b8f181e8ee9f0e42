"""Launch Triton kernels, or only compile them, many at once.

The first use of a kernel on a machine is slow: Triton compiles it, and a C compiler builds its launcher. Without this,
the first training step would wait for one kernel after the other.
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
    """Return a function that launches the kernel on this grid or, inside `compiled_ahead`, compiles it."""
    found = _ahead.get()
    return kernel[grid] if found is None else lambda *of, **how: found.append(kernel.warmup(*of, grid=grid, **how))


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """Compile all kernels that are launched inside, and load them on the current GPU.

    Nothing runs, so tensors may be on the device "meta", without memory. A kernel that cannot be compiled is skipped;
    the launch that needs it reports the error.
    """
    device = torch.cuda.current_device()  # threads do not inherit it
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
        compiled.run  # noqa: B018 (a property that builds the launcher)
