"""Run several jobs at the same time, each in its own process, so that one failure does not affect the others."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from rheobase.data.workers import cores


@dataclass(frozen=True)
class Failure:
    """The error of a job in a few words, instead of a result. The traceback went to standard error."""

    reason: str


def isolated(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
    """Run `function(*job)` for every job, one process per core. Yield (index, result or `Failure`) as they finish.

    Raise a ValueError if all jobs failed.
    """
    context, good = get_context("spawn"), 0
    to_start = list(enumerate(jobs))
    running: dict[Connection, tuple[int, SpawnProcess]] = {}
    try:
        while to_start or running:
            while to_start and len(running) < cores():
                index, job = to_start.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_send, args=(sender, function, job), daemon=True)
                process.start()
                sender.close()
                running[receiver] = index, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                index, process = running.pop(ready)
                try:
                    result = ready.recv()
                except EOFError:  # killed, so it could not report why
                    result = Failure("process ended")
                process.join()
                good += not isinstance(result, Failure)
                yield index, result
    finally:
        for _, process in running.values():
            process.terminate()
    if not good:
        raise ValueError(f"none of {len(jobs)} processes finished; see their errors above")


def _send(sender: Connection, function: Callable[..., Any], job: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # the other cores run other jobs
    try:
        result = function(*job)
    except Exception as error:
        traceback.print_exc()
        result = Failure(str(error) if isinstance(error, ValueError) else type(error).__name__)
    sender.send(result)
