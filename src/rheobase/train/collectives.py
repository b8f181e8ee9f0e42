"""What a step says to the other processes of its group, counted."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# torch's operators: what they do, and which argument holds what a process brings
OPERATORS = {"allreduce_": ("all_reduce", 0), "_allgather_base_": ("all_gather", 1)}


class Collective(NamedTuple):
    name: str
    bytes: int
    """That one process brings."""


class Collectives(TorchDispatchMode):
    """A context that notes every collective in it, in order; the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            operator = func._schema.name.removeprefix("c10d::")
            name, place = OPERATORS.get(operator, (operator, 0))
            self.calls.append(Collective(name, sum(t.nbytes for t in _tensors(args[place]))))
        return func(*args, **(kwargs or {}))


def _tensors(value: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    """Operators of torch take one tensor, or a list for all devices of a process."""
    return [value] if isinstance(value, Tensor) else value
