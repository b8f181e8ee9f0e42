"""Switches of cuDNN and the number of threads, for a while: a library call leaves its process as it was."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from rheobase.recipes import Recipe


@contextmanager
def cudnn(**switches: bool) -> Iterator[None]:
    """`benchmark`: look for the fastest algorithms, where shapes are fixed; `deterministic`: take only those that give
    the same bits every time; `allow_tf32`: 10 bits of mantissa.
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
    """The fastest algorithms, or the same ones every time: which is fastest may differ from start to start."""
    return cudnn(benchmark=not recipe.deterministic, deterministic=recipe.deterministic)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads for one operation on the CPU: sums depend on it."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
