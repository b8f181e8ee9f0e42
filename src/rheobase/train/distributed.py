"""Several processes that train one network: torchrun starts them, `join` makes their steps one.

Gradients are added up (see `gradients`). Statistics of tdBN are those of the global batch: every layer of it gets the
process group (see `nn.TdBN`), unless the recipe wants them local.
"""

import gc
import os
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
"""Around a backward pass: the gradients after it are the sums over all processes."""

T = TypeVar("T")

PATIENCE = 600.0  # seconds that a process waits for one that does not answer
GRACE = 60.0  # seconds more until nccl ends the process by itself, without a sentence of ours
RUNNING = ("running_mean", "running_var")  # of tdBN: equal in all processes where statistics are joined


class TeamBroken(RuntimeError):
    """Another process of the team has ended or does not answer. It is `quiet` where others will say why."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        super().__init__(message)
        self.quiet = quiet


@dataclass(frozen=True)
class Team:
    """The processes of a run; alone, every method is free."""

    rank: int = 0
    world: int = 1
    hosts: dist.ProcessGroup | None = None
    """The same processes, joined on their CPUs: for what is no matter of the GPUs."""

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def wait(self) -> None:
        """Until all processes are here. Their hosts wait: nccl would only let the GPUs do so."""
        if self.world > 1:
            dist.barrier(group=self.hosts)

    def confer(self, value: T) -> T:
        """The `value` of the first process."""
        if self.world == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self.hosts)
        return found[0]

    def all_agree(self, yes: bool) -> bool:
        """Whether every process says yes."""
        if self.world == 1:
            return yes
        return self.sum(torch.tensor(float(yes), device=_device())).item() == self.world

    def join(self, network: nn.Module, statistics: str) -> Summed:
        """What `join` returns; alone, a context that does nothing."""
        if self.world == 1:
            return nullcontext
        assert dist.group.WORLD is not None
        return join(network, dist.group.WORLD, statistics)

    @torch.no_grad()
    def averaged_buffers(self, network: nn.Module, statistics: str) -> dict[str, Tensor]:
        """Averages of the buffers that each process keeps from its own images, by name; alone, none.

        They are local statistics, or those of a part of the user's.
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
    """Make `network` that of all members of `group`: with the first one's weights, and tdBN over all their images.

    Returns the context for its backward passes, which adds up the gradients.
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
    """The team that torchrun started, and the device of this process; a team of one without torchrun.

    One that has waited for another for `patience` seconds gives up.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    inner = dist.is_initialized()  # around several runs: a second group would meet what the first left in the store
    with _one_sentence(patience):
        if not inner:
            backend, grace = ("nccl", GRACE) if device.type == "cuda" else ("gloo", 0.0)
            timeout = timedelta(seconds=patience + grace)
            store, rank, _ = next(rendezvous("env://", timeout=timeout))
            # torchrun may keep its store when it restarts us: with the addresses of those who are gone
            store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        try:
            hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
            yield Team(dist.get_rank(), world, hosts), device
        except RuntimeError:
            if not inner:
                give_up()
            raise
        finally:
            if not inner:
                # a network that still held the group would end it while Python shuts down, which can abort
                gc.collect()
                dist.destroy_process_group()


def give_up() -> None:
    """Wait no longer for a process that is gone: kernels of nccl would, and the end of their group for them."""
    assert dist.group.WORLD is not None
    if dist.get_backend() == "nccl":
        dist.group.WORLD.abort()


@contextmanager
def _one_sentence(patience: float) -> Iterator[None]:
    """What gloo and nccl say when they lose a process, in words of ours."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).lower()
        again = "--continue goes on with what was saved"
        if "connection" in said or "broken pipe" in said:
            # the first process speaks for all; if it is the one that ended, it has said why
            quiet = os.environ.get("RANK", "0") != "0"
            raise TeamBroken(f"another process of this run has ended; {again}", quiet=quiet) from error
        if "timed out" in said or "timeout" in said:
            raise TeamBroken(
                f"a process of this run did not answer for {patience:g} s (--patience); {again}"
            ) from error
        raise
