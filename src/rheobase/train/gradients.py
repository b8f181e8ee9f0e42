"""Gradients of all processes added up, bucket by bucket, while the backward pass goes on.

A bucket is one flat tensor, and one collective. It is filled and sent off when the last of its gradients is there, so
that it travels while earlier layers are still at work. Nothing waits for the host: a CUDA graph can hold all of it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Statistics and gradients share a communicator, which works in order: a bucket must not keep the next layer's
# statistics waiting for longer than that layer computes.
BUCKET_BYTES = 4 * 2**20
_ALIGNED = 32  # values: fused optimisers read gradients in vectors


class Gradients:
    """The gradients of `parameters`, of all members of a process group."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self.buckets: list[_Bucket] = []
        last_first = reversed([p for p in parameters if p.requires_grad])  # about as the backward pass comes to them
        for members in _portions(last_first, bucket_bytes):
            bucket = _Bucket(members, group)
            self.buckets.append(bucket)
            for p in members:
                p.register_post_accumulate_grad_hook(bucket.arrived)

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Around a backward pass; after it every gradient is the sum of all members'."""
        for bucket in self.buckets:
            bucket.begin()
        yield
        for bucket in self.buckets:
            bucket.finish()


class _Bucket:
    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.parameters, self.group = parameters, group
        sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in parameters]
        places = accumulate(sizes[:-1], initial=0)
        self.flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        self.views = [_view(self.flat, place, p) for place, p in zip(places, parameters, strict=True)]
        self.begin()

    def begin(self) -> None:
        self.missing = len(self.parameters)
        self.work: dist.Work | None = None

    def arrived(self, _: Tensor) -> None:
        """A gradient is there."""
        self.missing -= 1
        if self.missing == 0:
            self._send()

    def finish(self) -> None:
        if self.work is None:
            self._send()
        if self.work is not None:
            self.work.wait()  # the stream waits, the host goes on

    def _send(self) -> None:
        # a parameter without a part in the loss has no gradient, here and in every other process
        places = zip(self.views, self.parameters, strict=True)
        found = [(view, p, p.grad) for view, p in places if p.grad is not None]
        if not found:
            return
        torch._foreach_copy_([view for view, _, _ in found], [grad for _, _, grad in found])
        for view, p, _ in found:
            p.grad = view
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)


def _portions(parameters: Iterable[nn.Parameter], limit: int) -> Iterator[list[nn.Parameter]]:
    """In order, neighbours of one type together up to a bucket's size; larger ones alone."""
    portion: list[nn.Parameter] = []
    size = 0
    for p in parameters:
        fits = size + p.nbytes <= limit and (
            not portion or (p.dtype, p.device) == (portion[0].dtype, portion[0].device)
        )
        if portion and not fits:
            yield portion
            portion, size = [], 0
        portion.append(p)
        size += p.nbytes
    if portion:
        yield portion


def _view(flat: Tensor, place: int, like: Tensor) -> Tensor:
    """A part of `flat` in the shape and, but for gaps, in the memory order of a parameter."""
    return flat.as_strided(like.shape, torch.empty_like(like, device="meta").stride(), place)
