"""Set cuDNN options and the number of threads temporarily. A library call leaves its process as it was."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from rheobase.recipes import Recipe


@contextmanager
def cudnn(**switches: bool) -> Iterator[None]:
    """Set options of cuDNN in this context.

    `benchmark` searches for the fastest algorithms, for fixed shapes. `deterministic` uses only algorithms that give
    the same bits every time. `allow_tf32` computes with 10 bits of mantissa.
    """
    before = {name: getattr(torch.backends.cudnn, name) for name in switches}
    try:
        for name, value in switches.items():
            setattr(torch.backends.cudnn, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.backends.cudnn, name, value)


def cudnn_for(recipe: Recipe) -> AbstractContextManager[None]:
    """Use the fastest algorithms, which may differ from start to start, or deterministic ones."""
    return cudnn(benchmark=not recipe.deterministic, deterministic=recipe.deterministic)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Use this number of threads for operations on the CPU. The rounding of sums depends on it."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
