"""Decode image files in parallel, by threads of this process or by worker processes.

Threads start at once, but hold Python's lock for part of the work, so many threads slow down each other and the
training. Worker processes are new programs, never forks: that is safe next to CUDA, and does not run the user's script
again. They share one socket. Each takes the next few files from it when free, and writes the pixels to the memory of
the batch. They end when this end of the socket is closed, even if this process is killed. They ignore the signals that
a scheduler sends to all processes of a job, because this process still has to finish its step.
"""

import atexit
import errno
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from rheobase import plugins
from rheobase.data import decoding
from rheobase.data.decoding import MESSAGE, Decoder, Request, decode, pixels_of

LEAST_CORES, LEAST_FILES = 4, 1000  # below these, threads are used
TOGETHER = 4  # files per message
PATIENCE = 1000  # milliseconds without an answer before checking that all processes are alive
DEAF_TO = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
NOT_NOW = (errno.EAGAIN, errno.ETOOMANYREFS)  # the socket holds too many bytes or files

Pixels = NDArray[np.uint8]
Failed = Callable[[], list[int]]


class Workers(Protocol):
    """Threads or processes that decode images."""

    def begin(self, requests: Sequence[Request], pixels: Pixels) -> Failed:
        """Start decoding into `pixels` [N, H, W, 3]. Call the result to wait and get the rows that failed."""


def choose(files: int, decoder: Decoder = decode) -> Workers:
    """Choose the workers for this number of files: one process per core, or threads if there is little to do."""
    enough = cores() >= LEAST_CORES and files >= LEAST_FILES
    own = () if decoder is decode else (decoder,)
    if enough and hasattr(os, "memfd_create") and _found_by_name(decoder):
        return processes(cores(), *own)
    return threads(*own)


def cores() -> int:
    """Return the number of cores for this process: all that it may use, divided by the training processes here."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _found_by_name(decoder: Decoder) -> bool:
    """Return whether another process with the same plugins can find this function by name."""
    try:
        return pickle.loads(pickle.dumps(decoder)) is decoder and decoder.__module__ != "__main__"
    except Exception:  # pickle fails in many ways
        return False


@cache
def threads(decoder: Decoder = decode) -> "Threads":
    """Return the threads for this decoder, started on first use."""
    return Threads(decoder)


@cache
def processes(number: int, decoder: Decoder = decode) -> "Processes":
    """Return the worker processes for this decoder, started on first use."""
    return Processes(number, decoder)


if hasattr(os, "register_at_fork"):  # a fork of this process has none of its threads, and must not take its answers
    os.register_at_fork(after_in_child=threads.cache_clear)
    os.register_at_fork(after_in_child=processes.cache_clear)


class Threads:
    """Decode with threads of this process."""

    def __init__(self, decoder: Decoder) -> None:
        self.pool, self.decoder = ThreadPoolExecutor(cores()), decoder

    def begin(self, requests: Sequence[Request], pixels: Pixels) -> Failed:
        tasks = [self.pool.submit(self._decoded, *task) for task in zip(requests, pixels, strict=True)]
        return lambda: [row for row, task in enumerate(tasks) if not task.result()]

    def _decoded(self, request: Request, pixels: Pixels) -> bool:
        try:
            pixels[:] = np.frombuffer(pixels_of(request, self.decoder), np.uint8).reshape(pixels.shape)
        except Exception:  # the caller decodes it again and reports the reason
            return False
        return True


def _serving(descriptor: int, decoder: Decoder) -> str:
    """Return the last statements of a worker's program. It imports more only for a decoder from elsewhere."""
    if decoder is decode:
        return f"serve({descriptor})"
    loading = f"from rheobase import plugins; [plugins.load(source) for source in {plugins.loaded()}]"
    return f"{loading}; serve({descriptor}, pickle.loads({pickle.dumps(decoder)!r}))"


def _stopped(pid: int) -> bool:
    """Return whether a worker was stopped by a signal."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it ended, which is noticed elsewhere
        return False


@contextmanager
def _blocked() -> Iterator[None]:
    """Block these signals in all processes that are started meanwhile, from their first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Batch:
    """A batch of files being decoded. The pixels go to a `file` in memory."""

    def __init__(self, files: int) -> None:
        self.file = os.memfd_create("pixels")
        self.left = files
        self.failed: list[int] = []

    def __del__(self) -> None:
        os.close(self.file)


class Processes:
    """Decode with worker processes."""

    def __init__(self, number: int, decoder: Decoder) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self.answers = select.poll()
        self.answers.register(self.channel, select.POLLIN)
        # run by path, because importing its package would import torch
        program = (
            f"import pickle, runpy, sys; sys.path[:] = {sys.path}; "
            f"serve = runpy.run_path({decoding.__file__!r})['serve']; {_serving(theirs.fileno(), decoder)}"
        )
        # Otherwise every worker would repeat Pillow's warnings about odd metadata.
        command = [sys.executable, "-W", "ignore", "-c", program]
        with theirs, _blocked():
            self.processes = [
                # in its own process group, so that Ctrl-Z does not stop it
                subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0)
                for _ in range(number)
            ]
        self.numbers = count()
        # A batch that nobody waits for any more disappears from here, and its files are not decoded.
        self.batches: WeakValueDictionary[int, Batch] = WeakValueDictionary()
        self.unsent: deque[tuple[int, int, list[tuple[Any, ...]]]] = deque()
        atexit.register(self.close)

    def begin(self, requests: Sequence[Request], pixels: Pixels) -> Failed:
        batch, number = Batch(len(requests)), next(self.numbers)
        self.batches[number] = batch
        rows = range(0, len(requests), TOGETHER)
        self.unsent.extend((number, row, [tuple(r) for r in requests[row : row + TOGETHER]]) for row in rows)
        self._send()

        def finish() -> list[int]:
            while batch.left:
                self._receive()
                self._send()
            with open(batch.file, "rb", closefd=False) as file:
                file.readinto(pixels.data)
            return sorted(batch.failed)

        return finish

    def close(self) -> None:
        """End the workers."""
        self.channel.close()
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:  # stuck on a disk that does not respond
                process.kill()
                process.wait()

    def _send(self) -> None:
        """Send as many messages as the socket takes."""
        while self.unsent:
            batch = self.batches.get(self.unsent[0][0])
            if batch is not None:
                try:
                    socket.send_fds(self.channel, [pickle.dumps(self.unsent[0])], [batch.file])
                except OSError as error:
                    if error.errno in NOT_NOW or isinstance(error, ConnectionError):  # _receive reports it
                        return
                    raise
            self.unsent.popleft()

    def _receive(self) -> None:
        """Receive one answer; after a timeout, check that every worker is alive."""
        message = b""
        with suppress(ConnectionError):  # all workers ended
            if self.answers.poll(PATIENCE):
                message = self.channel.recv(MESSAGE)
        if message:
            number, files, failed = pickle.loads(message)
            batch = self.batches.get(number)
            if batch is not None:
                batch.failed += failed
                batch.left -= files
            return
        for process in self.processes:
            if _stopped(process.pid):
                warnings.warn(
                    f"an image-decoding process ({process.pid}) was stopped; it was told to continue", stacklevel=2
                )
                process.send_signal(signal.SIGCONT)
        ended = [process.returncode for process in self.processes if process.poll() is not None]
        if ended:
            processes.cache_clear()
            self.close()
            raise ChildProcessError(
                f"{len(ended)} of {len(self.processes)} image-decoding processes ended (exit code {ended[0]}); "
                "if memory ran out, use smaller batches or fewer training processes"
            )
