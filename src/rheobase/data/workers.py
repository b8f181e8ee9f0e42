"""Decode image files in parallel: in worker processes of torch's DataLoader, or in threads of this process.

Threads start at once, but hold Python's lock for part of the work, so many threads slow down each other and the
training. Worker processes are forks of this process, which start fast and know every decoder. They write pixels to
memory that all of them share, and last for one pass over the files.
"""

import math
import mmap
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, count, tee
from multiprocessing import current_process

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from rheobase.data.decoding import Decoder, Request, pixels_of

LEAST_CORES, LEAST_FILES = 4, 1000  # below these, threads are used
AHEAD = 2  # batches that are decoded ahead
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
LOOK = 0.2  # seconds after which a worker notices that its parent is gone

Piece = tuple[int, list[Request]]  # a part of a batch, and its number
Failed = list[int]  # rows that could not be decoded


def cores() -> int:
    """Return the number of cores for this process: all that it may use, divided by the training processes here."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def processes_for(files: int) -> int:
    """Return how many processes decode a split: one per core, or 0, for threads, if there is little to do."""
    enough = cores() >= LEAST_CORES and files >= LEAST_FILES
    able = sys.platform == "linux" and not current_process().daemon  # elsewhere, forks are not safe or not allowed
    return cores() if enough and able else 0


def decoded(
    batches: Iterable[list[Request]], decoder: Decoder, size: int, processes: int = 0, *, pinned: bool = False
) -> Iterator[tuple[Tensor, Failed]]:
    """Yield the pixels [N, size, size, 3] of every batch, page-locked if `pinned`, and the rows that failed.

    Every worker decodes a piece of each batch. Two batches are decoded ahead.
    """
    number, rest = processes or cores(), iter(batches)
    if (first := next(rest, None)) is None:
        return
    together = max(1, -(-len(first) // number))
    asked, expected = tee(chain([first], rest))
    parts = (requests[i : i + together] for requests in asked for i in range(0, len(requests), together))
    decoding = Decoding(decoder, AHEAD * number + 1, together, size)
    decode = _by_processes if processes else _by_threads
    found = decode(decoding, enumerate(parts), number)
    numbers = count()
    for requests in expected:
        pixels = torch.empty(len(requests), *decoding.places.shape[2:], dtype=torch.uint8, pin_memory=pinned)
        failed: Failed = []
        for row in range(0, len(requests), together):
            failed += [row + i for i in next(found)]
            part = pixels[row : row + together]
            part[:] = decoding.place(next(numbers))[: len(part)]
        yield pixels, failed


class Decoding(TorchDataset[Failed]):
    """Decodes pieces, each to a place of its own in shared memory. Only a piece that was used is overwritten."""

    def __init__(self, decoder: Decoder, places: int, together: int, size: int) -> None:
        self.decoder = decoder
        shape = places, together, size, size, 3
        # unlike /dev/shm, it may be as large as any memory of a container
        self.places = torch.frombuffer(mmap.mmap(-1, math.prod(shape)), dtype=torch.uint8).view(shape)

    def place(self, number: int) -> Tensor:
        """Return the place of this piece."""
        return self.places[number % len(self.places)]

    def __getitem__(self, piece: Piece) -> Failed:
        """Decode a piece and return the rows that failed."""
        number, requests = piece
        failed = []
        for row, (request, pixels) in enumerate(zip(requests, self.place(number), strict=False)):
            try:
                content = pixels_of(request, self.decoder)
            except Exception:  # the caller decodes it again and reports the reason
                failed.append(row)
            else:  # by NumPy, because torch would start more threads for each of ours
                pixels.numpy()[:] = np.frombuffer(content, np.uint8).reshape(pixels.shape)
        return failed


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores())


def _by_threads(decoding: Decoding, pieces: Iterable[Piece], number: int) -> Iterator[Failed]:
    waiting: deque[Future[Failed]] = deque()
    for piece in pieces:
        waiting.append(_threads().submit(decoding.__getitem__, piece))
        if len(waiting) > AHEAD * number:
            yield waiting.popleft().result()
    yield from (task.result() for task in waiting)


def _by_processes(decoding: Decoding, pieces: Iterable[Piece], number: int) -> Iterator[Failed]:
    loader = DataLoader(
        decoding,
        batch_size=None,
        sampler=pieces,
        num_workers=number,
        prefetch_factor=AHEAD,
        multiprocessing_context="fork",
        worker_init_fn=partial(_follow, os.getpid()),
        generator=torch.Generator(),  # or it would draw a random number from torch's own
    )
    with _quietly():
        answers = iter(loader)
    try:
        yield from answers
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):  # the pieces themselves may fail, too
            raise
        raise ChildProcessError(
            f"an image-decoding process ended: {str(error).splitlines()[0]}; "
            "if memory ran out, use smaller batches or fewer training processes"
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Start workers that block the signals of a scheduler, which sends them to all processes of a job.

    The training process still has to finish its step. It keeps its own handler of SIGCHLD: torch's would raise an error
    for a lost worker at any moment, not only where a batch is awaited. Python 3.12 and later warn of every fork of a
    process with threads, about which nobody who trains a network can do anything.
    """
    before, handler = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS), signal.getsignal(signal.SIGCHLD)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)


def _follow(parent: int, worker: int) -> None:
    """End this worker when its parent wants it or is gone, however it ended. Leave warnings to the parent."""
    warnings.simplefilter("ignore")  # or every worker would repeat Pillow's about odd metadata, in every pass

    def listen() -> None:
        while os.getppid() == parent:
            heard = signal.sigtimedwait(SIGNALS, LOOK)
            if heard and heard.si_signo == signal.SIGTERM and heard.si_pid == parent:
                break
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
