"""Sum the gradients of all processes, as one flat tensor in one collective, after the backward pass.

Nothing waits for the host, so a CUDA graph can contain it. docs/kernels.md explains why this does not overlap with the
backward pass.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

_ALIGNED = 32  # values; fused optimisers read gradients in vectors


class Gradients:
    """The gradients of `parameters`, summed over a process group; by default over all processes."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.parameters = [p for p in parameters if p.requires_grad]
        self.places: dict[nn.Parameter, Tensor] = {}
        self.flat: list[Tensor] = []  # one per dtype, so usually one
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            alike = [p for p in self.parameters if p.dtype == dtype]
            sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in alike]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=alike[0].device)
            self.flat.append(flat)
            for p, start in zip(alike, accumulate(sizes[:-1], initial=0), strict=True):
                # in the memory order of the parameter, which its gradient has too
                self.places[p] = flat.as_strided(p.shape, torch.empty_like(p, device="meta").stride(), start)

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Enclose a backward pass. After it, every gradient is the sum over all processes."""
        yield
        self.collect()
        for flat in self.flat:
            dist.all_reduce(flat, group=self.group)

    def collect(self) -> None:
        """Move the gradients of this process into the flat tensors."""
        # A parameter that does not affect the loss has no gradient, in any process.
        found = [(p, p.grad) for p in self.parameters if p.grad is not None]
        torch._foreach_copy_([self.places[p] for p, _ in found], [grad for _, grad in found])
        for p, _ in found:
            p.grad = self.places[p]
