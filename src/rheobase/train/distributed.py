"""Train one network in several processes: torchrun starts them, and `join` makes their steps one.

Gradients are summed (see `gradients`). The statistics of tdBN are those of the global batch: every layer gets the
process group (see `nn.TdBN`), unless the recipe asks for local statistics.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rheobase.nn import TdBN, normalisations
from rheobase.train.gradients import Gradients

Summed = Callable[[], AbstractContextManager[None]]
"""A context for a backward pass. After it, the gradients are the sums over all processes."""

T = TypeVar("T")

PATIENCE = 600.0  # seconds that a process waits for another that does not answer
GRACE = 60.0  # more seconds until NCCL ends the process itself, without a clear message
RUNNING = ("running_mean", "running_var")  # of tdBN; equal in all processes if statistics are joined


class TeamBroken(RuntimeError):
    """Another process of the team has ended or does not answer. If `quiet`, another process reports why."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        super().__init__(message)
        self.quiet = quiet


@dataclass(frozen=True)
class Team:
    """The processes of a run. For a single process, no method communicates."""

    rank: int = 0
    world: int = 1
    hosts: dist.ProcessGroup | None = None
    """A group of the same processes that communicates on the CPUs, for everything that does not concern the GPUs."""
    patience: float = PATIENCE
    """Seconds to wait for another process."""

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def read(self, tensor: Tensor) -> list[float]:
        """Return the values of a tensor. Do not wait for a GPU forever: it may wait for a process that hangs."""
        if self.world > 1 and tensor.device.type == "cuda":
            computed, until = torch.cuda.Event(), time.monotonic() + self.patience
            computed.record()
            while not computed.query():
                if time.monotonic() > until:
                    raise RuntimeError(f"timed out: {tensor.device} did not finish within {self.patience:g} s")
                time.sleep(0.001)
        return tensor.tolist()

    def wait(self) -> None:
        """Wait until all processes are here. The hosts wait: with NCCL, only the GPUs would."""
        if self.world > 1:
            dist.barrier(group=self.hosts)

    def confer(self, value: T) -> T:
        """Return the `value` of the first process."""
        if self.world == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self.hosts)
        return found[0]

    def all_agree(self, yes: bool) -> bool:
        """Return whether every process says yes."""
        if self.world == 1:
            return yes
        return self.read(self.sum(torch.tensor([float(yes)], device=_device()))) == [self.world]

    def join(self, network: nn.Module, statistics: str) -> Summed:
        """Join the processes as `join` does. For a single process, return a context that does nothing."""
        if self.world == 1:
            return nullcontext
        assert dist.group.WORLD is not None
        return join(network, dist.group.WORLD, statistics)

    @torch.no_grad()
    def averaged_buffers(self, network: nn.Module, statistics: str) -> dict[str, Tensor]:
        """Return the average, by name, of every buffer that each process computes from its own images.

        These are local statistics, or buffers of a user's own part. For a single process, there is nothing to average.
        """
        if self.world == 1:
            return {}
        return {
            f"{place}.{name}" if place else name: self.sum(buffer) / self.world
            for place, module in network.named_modules(remove_duplicate=False)
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
            if buffer.is_floating_point()
            and not (statistics == "joined" and isinstance(module, TdBN) and name in RUNNING)
        }


def join(network: nn.Module, group: dist.ProcessGroup, statistics: str = "joined") -> Summed:
    """Give all processes of `group` the weights of the first, and let tdBN use the images of all of them.

    Return a context for backward passes, which sums the gradients.
    """
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            sent = tensor.contiguous()
            dist.broadcast(sent, group=group, group_src=0)
            tensor.copy_(sent)
    if statistics == "joined":
        for layer in normalisations(network):
            layer.group = group
    return Gradients(network.parameters(), group).summed


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


ALONE = Team()


@contextmanager
def team(device: torch.device, patience: float = PATIENCE) -> Iterator[tuple[Team, torch.device]]:
    """Yield the team that torchrun started, and the device of this process. Without torchrun, the team has one process.

    A process gives up after it has waited `patience` seconds for another.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # For several runs there is a team around theirs. A second group would find what the first left in the store.
    inner = dist.is_initialized()
    with _one_sentence(patience):
        if not inner:
            backend, grace = ("nccl", GRACE) if device.type == "cuda" else ("gloo", 0.0)
            timeout = timedelta(seconds=patience + grace)
            store, rank, _ = next(rendezvous("env://", timeout=timeout))
            # When torchrun restarts the processes, its store may still hold the addresses of the earlier ones.
            store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        try:
            hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
            yield Team(dist.get_rank(), world, hosts, patience), device
        except RuntimeError:
            if not inner:
                give_up()
            raise
        finally:
            if not inner:
                # A network that still holds the group would end it while Python shuts down, which can abort.
                gc.collect()
                dist.destroy_process_group()


def give_up() -> None:
    """Stop waiting for a process that is gone. NCCL's kernels would wait for it, and the end of the group for them."""
    assert dist.group.WORLD is not None
    if dist.get_backend() == "nccl":
        dist.group.WORLD.abort()


@contextmanager
def _one_sentence(patience: float) -> Iterator[None]:
    """Replace the errors of gloo and NCCL about a lost process by one sentence."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).lower()
        again = "--continue resumes from the last checkpoint"
        if "connection" in said or "broken pipe" in said:
            # The first process reports for all. If it is the one that ended, it has said why.
            quiet = os.environ.get("RANK", "0") != "0"
            raise TeamBroken(f"another process of this run has ended; {again}", quiet=quiet) from error
        if "timed out" in said or "timeout" in said:
            raise TeamBroken(
                f"a process of this run did not answer for {patience:g} s (--patience); {again}"
            ) from error
        raise
