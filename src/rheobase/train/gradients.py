"""Gradients of all processes added up: one flat tensor and one collective, after the backward pass.

Nothing waits for the host, so a CUDA graph can hold it. docs/kernels.md says why not during the backward pass.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

_ALIGNED = 32  # values: fused optimisers read gradients in vectors


class Gradients:
    """The gradients of `parameters`, of all members of a process group; without one, of that of all processes."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.parameters = [p for p in parameters if p.requires_grad]
        self.places: dict[nn.Parameter, Tensor] = {}
        self.flat: list[Tensor] = []  # one for each type, which is to say one
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            alike = [p for p in self.parameters if p.dtype == dtype]
            sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in alike]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=alike[0].device)
            self.flat.append(flat)
            for p, start in zip(alike, accumulate(sizes[:-1], initial=0), strict=True):
                # in the parameter's own memory order, which is that of its gradient
                self.places[p] = flat.as_strided(p.shape, torch.empty_like(p, device="meta").stride(), start)

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Around a backward pass; after it every gradient is the sum of all members'."""
        yield
        self.collect()
        for flat in self.flat:
            dist.all_reduce(flat, group=self.group)

    def collect(self) -> None:
        """Move this process's gradients to where they are added up."""
        # a parameter without a part in the loss has no gradient, here and in every other process
        found = [(p, p.grad) for p in self.parameters if p.grad is not None]
        torch._foreach_copy_([self.places[p] for p, _ in found], [grad for _, grad in found])
        for p, _ in found:
            p.grad = self.places[p]
