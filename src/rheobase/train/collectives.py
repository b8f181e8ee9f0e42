"""Count the collectives of a step, and their bytes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# for operators of torch: the name of the collective, and the argument that holds the input of this process
OPERATORS = {"allreduce_": ("all_reduce", 0), "_allgather_base_": ("all_gather", 1)}


class Collective(NamedTuple):
    """One collective of a process group."""

    name: str
    bytes: int
    """Size of the input of one process."""


class Collectives(TorchDispatchMode):
    """A context that records every collective in it, in order, including those of the backward pass."""

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
    """Return the tensors in an argument: one tensor, or a list with one for every device of the process."""
    return [value] if isinstance(value, Tensor) else value
