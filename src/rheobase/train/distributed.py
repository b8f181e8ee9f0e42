"""Several processes that train one network: torchrun starts them, DistributedDataParallel joins their gradients.

Statistics of tdBN are those of the global batch: every layer of it gets the process group (see `nn.TdBN`).
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from rheobase.nn import normalisations

T = TypeVar("T")

PATIENCE = 600.0  # seconds that a process waits for one that does not answer
GRACE = 60.0  # seconds more until nccl ends the process by itself, without a sentence of ours


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
        """Until all processes are here."""
        if self.world > 1:
            self.sum(torch.zeros(1, device="cuda" if dist.get_backend() == "nccl" else "cpu"))

    def confer(self, value: T) -> T:
        """The `value` of the first process."""
        if self.world == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self.hosts)
        return found[0]

    def wrap(self, network: nn.Module) -> nn.Module:
        """`network` with gradients averaged and statistics joined over all processes."""
        if self.world == 1:
            return network
        for layer in normalisations(network):
            layer.group = dist.group.WORLD
        return DistributedDataParallel(network)


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
        finally:
            if not inner:
                # a network that still held the group would end it while Python shuts down, which can abort
                gc.collect()
                dist.destroy_process_group()


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
