"""What a step says to the other processes of its group, counted."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = {"allreduce_": "all_reduce", "_allgather_base_": "all_gather"}  # by those of torch's operators


class Collective(NamedTuple):
    name: str
    bytes: int
    """Of its result in one process."""


class Collectives(TorchDispatchMode):
    """A context that notes every collective in it, in order; the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            self.calls.append(Collective(NAMES.get(name, name), sum(t.nbytes for t in _tensors(args[0]))))
        return func(*args, **(kwargs or {}))

    def counts(self) -> dict[str, int]:
        return dict(Counter(call.name for call in self.calls))


def _tensors(value: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    """Operators of torch take one tensor, or a list for all devices of a process."""
    return [value] if isinstance(value, Tensor) else value
