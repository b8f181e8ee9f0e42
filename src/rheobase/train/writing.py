"""Write checkpoints while training continues: copy them to host memory, then let a thread write them.

On a GPU, the copies go to pinned memory, queued behind the previous step, and training does not wait for them. The
thread gets them when they are complete. It never calls CUDA, which could spoil a graph capture at the same moment.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from rheobase.train.checkpoint import Tensors

ALIGNMENT = 64  # bytes

Write = Callable[[dict[str, Tensors]], None]


class Writer:
    """Writes one checkpoint at a time."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.memory = torch.empty(0, dtype=torch.uint8)  # for the copies; reused for every checkpoint
        self.copying: tuple[torch.cuda.Event, Callable[[], None]] | None = None
        self.threads = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None

    def reserve(self, *groups: Tensors) -> None:
        """Allocate memory for all of `groups`. Do this early: pinning memory takes longer than copying."""
        size = sum(_room(t) for group in groups for t in group.values())
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=self.on_gpu)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is not written yet."""
        return self.copying is not None or (self.writing is not None and not self.writing.done())

    def begin(self, tensors: dict[str, Tensors], write: Write) -> None:
        """Let the thread `write` the present content of `tensors`, after any earlier checkpoint."""
        self.wait()
        copies = self._copies(tensors)
        if self.on_gpu:
            copied = torch.cuda.Event()
            copied.record()
            self.copying = copied, lambda: self._start(write, copies)
        else:
            self._start(write, copies)

    def look(self) -> None:
        """Hand complete copies to the thread, and raise its errors. Call this often."""
        if self.copying is not None and self.copying[0].query():
            self._hand_over()
        if self.writing is not None and self.writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is written."""
        if self.copying is not None:
            self.copying[0].synchronize()
            self._hand_over()
        if self.writing is not None:
            writing, self.writing = self.writing, None
            writing.result()

    def close(self) -> None:
        """Finish what the thread has. Its errors are not raised, as another error may be on its way."""
        self.threads.shutdown()

    def _hand_over(self) -> None:
        assert self.copying is not None
        (_, start), self.copying = self.copying, None
        start()

    def _start(self, write: Write, copies: dict[str, Tensors]) -> None:
        self.writing = self.threads.submit(write, copies)

    def _copies(self, tensors: dict[str, Tensors]) -> dict[str, Tensors]:
        """Copy all tensors, one after the other, to host memory."""
        self.reserve(*tensors.values())
        copies: dict[str, Tensors] = {name: {} for name in tensors}
        start = 0
        for group, values in tensors.items():
            for name, value in values.items():
                room = self.memory[start : start + value.numel() * value.element_size()]
                copy = room.view(value.dtype).view(value.shape)
                copies[group][name] = copy.copy_(value.detach(), non_blocking=True)
                start += _room(value)
        return copies


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
