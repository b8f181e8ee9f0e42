"""Image files decoded at the same time: by threads of this process, or by processes that do nothing else.

Threads start at once, but hold Python's lock for a part of the work: many wait for it, and so does the training.
Processes are started as new programs, never as copies of this one: that is safe next to CUDA, and the script that runs
here is not run again there. They share one socket, from which each takes the next few files when it is free, and write
the pixels to memory of the batch. They end when this end of the socket is closed, even if this process is killed, and
never hear the signals by which a scheduler ends all processes of a job: this one still wants to finish a step.
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

LEAST_CORES, LEAST_FILES = 4, 1000  # for which processes are started
TOGETHER = 4  # files of one message
PATIENCE = 1000  # milliseconds without an answer until somebody looks whether all processes live
DEAF_TO = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
NOT_NOW = (errno.EAGAIN, errno.ETOOMANYREFS)  # the socket is full, of bytes or of files

Pixels = NDArray[np.uint8]
Failed = Callable[[], list[int]]


class Workers(Protocol):
    def begin(self, requests: Sequence[Request], pixels: Pixels) -> Failed:
        """Start to decode to `pixels` [N, H, W, 3]; the result waits for it and names the rows that failed."""


def choose(files: int, decoder: Decoder = decode) -> Workers:
    """Who decodes a data set of so many files: a process per core, or threads where there is too little to do."""
    enough = cores() >= LEAST_CORES and files >= LEAST_FILES
    own = () if decoder is decode else (decoder,)
    if enough and hasattr(os, "memfd_create") and _found_by_name(decoder):
        return processes(cores(), *own)
    return threads(*own)


def cores() -> int:
    """Those that this process may use, divided among the training processes of the machine."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _found_by_name(decoder: Decoder) -> bool:
    """Whether another process that has loaded the same plugins has this function too."""
    try:
        return pickle.loads(pickle.dumps(decoder)) is decoder and decoder.__module__ != "__main__"
    except Exception:  # which kind it is depends on why pickle cannot do it
        return False


@cache
def threads(decoder: Decoder = decode) -> "Threads":
    return Threads(decoder)


@cache
def processes(number: int, decoder: Decoder = decode) -> "Processes":
    return Processes(number, decoder)


class Threads:
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
    """The end of the program of a process; only for a decoder from elsewhere does it import more."""
    if decoder is decode:
        return f"serve({descriptor})"
    loading = f"from rheobase import plugins; [plugins.load(source) for source in {plugins.loaded()}]"
    return f"{loading}; serve({descriptor}, pickle.loads({pickle.dumps(decoder)!r}))"


def _stopped(pid: int) -> bool:
    """Whether a process of ours was stopped by a signal."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it ended, which others will notice
        return False


@contextmanager
def _blocked() -> Iterator[None]:
    """Processes that are started meanwhile have these signals blocked for good, from their first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Batch:
    """Files on their way to pixels; those go to a `file` in memory."""

    def __init__(self, files: int) -> None:
        self.file = os.memfd_create("pixels")
        self.left = files
        self.failed: list[int] = []

    def __del__(self) -> None:
        os.close(self.file)


class Processes:
    def __init__(self, number: int, decoder: Decoder) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self.answers = select.poll()
        self.answers.register(self.channel, select.POLLIN)
        # by its path: importing the package around it would import torch
        program = (
            f"import pickle, runpy, sys; sys.path[:] = {sys.path}; "
            f"serve = runpy.run_path({decoding.__file__!r})['serve']; {_serving(theirs.fileno(), decoder)}"
        )
        # Each of them would repeat what Pillow has to say of odd metadata.
        command = [sys.executable, "-W", "ignore", "-c", program]
        with theirs, _blocked():
            self.processes = [
                # in a group of its own: Ctrl-Z is not for it either
                subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0)
                for _ in range(number)
            ]
        self.numbers = count()
        # Batches that nobody waits for any more disappear from here, and so does their work.
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
        self.channel.close()
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:  # a disk that does not answer
                process.kill()
                process.wait()

    def _send(self) -> None:
        """As many messages as the socket takes."""
        while self.unsent:
            batch = self.batches.get(self.unsent[0][0])
            if batch is not None:
                try:
                    socket.send_fds(self.channel, [pickle.dumps(self.unsent[0])], [batch.file])
                except OSError as error:
                    if error.errno in NOT_NOW or isinstance(error, ConnectionError):  # which receiving will tell
                        return
                    raise
            self.unsent.popleft()

    def _receive(self) -> None:
        """Receive one answer; after a timeout, check that every worker is alive."""
        message = b""
        with suppress(ConnectionError):  # all processes ended
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
                    f"a process that decodes images ({process.pid}) was stopped; it is told to go on", stacklevel=2
                )
                process.send_signal(signal.SIGCONT)
        ended = [process.returncode for process in self.processes if process.poll() is not None]
        if ended:
            processes.cache_clear()
            self.close()
            raise ChildProcessError(
                f"{len(ended)} of {len(self.processes)} processes that decode images ended (exit code {ended[0]}); "
                "if memory ran out, use smaller batches or fewer training processes"
            )
