"""Start the GPU while the data are read and the network is built.

Starting CUDA, loading its libraries and importing Triton take seconds, in which the CPU can do other work.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from threading import Thread

import torch

from rheobase.extras import installed


def wake(device: torch.device) -> Callable[[], None]:
    """Start a GPU in a thread. Call the result to wait for it: work in another thread would spoil a capture."""
    if device.type != "cuda":
        return lambda: None
    if device.index is None and torch.cuda.is_initialized():
        device = torch.device("cuda", torch.cuda.current_device())  # a thread does not inherit it
    thread = Thread(target=use, args=(device,), name="waking")
    thread.start()
    return thread.join


def use(device: torch.device) -> None:
    """Run a convolution, a matrix product and a kernel of ours. Errors are reported when these are needed."""
    with suppress(Exception):
        x = torch.ones(8, 8, 8, 8, dtype=torch.bfloat16, device=device).to(memory_format=torch.channels_last)
        y = torch.conv2d(x, x[:, :, :3, :3])
        torch.mm(y.flatten(1), y.flatten(1).T)
        if installed("triton"):
            ones = torch.ones(8, device=device)
            import_module("rheobase.kernels.triton").pack(ones, ones[:1].byte())  # Triton examines itself for a second
