"""Several processes that train one network: torchrun starts them, DistributedDataParallel joins their gradients.

Statistics of tdBN are those of the global batch: every layer of it gets the process group (see `nn.TdBN`).
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rheobase.nn import normalisations

PATIENCE = timedelta(minutes=10)  # how long a process waits for one that does not answer


@dataclass(frozen=True)
class Team:
    """The processes of a run; alone, every method is free."""

    rank: int = 0
    world: int = 1

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

    def wrap(self, network: nn.Module) -> nn.Module:
        """`network` with gradients averaged and statistics joined over all processes."""
        if self.world == 1:
            return network
        for layer in normalisations(network):
            layer.group = dist.group.WORLD
        return DistributedDataParallel(network)


@contextmanager
def team(device: torch.device) -> Iterator[tuple[Team, torch.device]]:
    """The team that torchrun started, and the device of this process; a team of one without torchrun."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Team(), device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if dist.is_initialized():  # around several runs: a second group would meet what the first left in the store
        yield Team(dist.get_rank(), world), device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Team(dist.get_rank(), world), device
    finally:
        gc.collect()  # a network that still held the group would end it while Python shuts down, which can abort
        dist.destroy_process_group()
