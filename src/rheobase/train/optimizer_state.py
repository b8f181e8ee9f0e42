"""The state of an optimiser by parameter names, as tensors and numbers that a file can hold."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

WAYS = ("fused", "foreach", "capturable")  # depend on the device, which may differ when the run is resumed


def kept(optimizer: Optimizer, network: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the state of every parameter and group, with its key. `name` is the optimiser's, for messages."""
    state, names = optimizer.state_dict(), _optimised(optimizer, network)
    places = [(names[i], own) for i, own in state["state"].items()]
    places += [(f"group{i}", group) for i, group in enumerate(state["param_groups"])]
    for place, values in places:
        for key, value in values.items():
            if key in ("params", "lr", *WAYS) or value is None:
                continue
            plain = all(isinstance(v, bool | int | float | str) for v in _items(value))
            if not plain and not isinstance(value, Tensor):
                raise ValueError(
                    f"optimizer '{name}' keeps a {type(value).__name__} as {key}, which a "
                    "checkpoint cannot hold; use tensors and numbers instead"
                )
            yield f"{place}.{key}", value


def restore(optimizer: Optimizer, network: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load the state from `kept` into the optimiser."""
    parameters, state = dict(network.named_parameters()), {}
    for i, name in enumerate(_optimised(optimizer, network)):
        like, own = parameters[name], under(f"{name}.", saved)
        state[i] = {
            # in the memory order of the parameter, as the optimiser creates it
            key: torch.empty_like(like).copy_(v) if isinstance(v, Tensor) and v.shape == like.shape else v
            for key, v in own.items()
        }
    groups = optimizer.state_dict()["param_groups"]
    for i, group in enumerate(groups):
        own = {key: v for key, v in under(f"group{i}.", saved).items() if key not in WAYS}  # in older files
        group |= {key: tuple(v) if isinstance(group.get(key), tuple) else v for key, v in own.items()}
    optimizer.load_state_dict({"state": {i: s for i, s in state.items() if s}, "param_groups": groups})


def under(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _optimised(optimizer: Optimizer, network: nn.Module) -> list[str]:
    """Return the names of the parameters in the order of the optimiser's state."""
    names = {id(p): name for name, p in network.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)
