"""Several trainings at the same time, each in a process of its own: one that breaks takes nothing else with it."""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch


@dataclass(frozen=True)
class Failure:
    """In place of a result: what was raised, in a few words. The traceback went to standard error."""

    reason: str


def isolated(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
    """`function(*job)` of every job, one process per core: (index, result or `Failure`), as they come.

    Where nothing but failures came, that is an error.
    """
    context, good = get_context("spawn"), 0
    to_start = list(enumerate(jobs))
    running: dict[Connection, tuple[int, SpawnProcess]] = {}
    try:
        while to_start or running:
            while to_start and len(running) < (os.cpu_count() or 1):
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
                except EOFError:  # killed: it could not say why
                    result = Failure("process ended")
                process.join()
                good += not isinstance(result, Failure)
                yield index, result
    finally:
        for _, process in running.values():
            process.terminate()
    if not good:
        raise ValueError(f"none of {len(jobs)} processes finished; their errors are above")


def _send(sender: Connection, function: Callable[..., Any], job: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # the other cores have jobs of their own
    try:
        result = function(*job)
    except Exception as error:
        traceback.print_exc()
        result = Failure(str(error) if isinstance(error, ValueError) else type(error).__name__)
    sender.send(result)
