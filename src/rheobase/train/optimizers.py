"""Optimisers by name: functions of parameter groups, a learning rate and the recipe.

On a GPU, the learning rate is a tensor there, so that a captured step sees it change. Their state must be there too.
"""

from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.plugins import Part, optimizer
from rheobase.recipes import Recipe

Groups = list[dict[str, Any]]


def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """Return the same optimiser without torch's wrappers for compilation, which import the compiler and take seconds.

    Of `step`, the bare method is left. It runs without gradients, as in torch.
    """
    methods = {name: unwrap(getattr(kind, name)) for name in ("add_param_group", "load_state_dict", "state_dict")}
    methods |= {"zero_grad": unwrap(kind.zero_grad), "step": torch.no_grad()(unwrap(kind.step))}
    return type(kind.__name__, (kind,), {**methods, "__module__": __name__})


_SGD, _AdamW = _without_compiler(torch.optim.SGD), _without_compiler(torch.optim.AdamW)


@optimizer
def sgd(groups: Groups, lr: float | Tensor, recipe: Recipe) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum, by Nesterov's rule if the recipe asks for it."""
    made: torch.optim.SGD = _SGD(groups, lr=lr, momentum=recipe.momentum, nesterov=recipe.nesterov, fused=True)
    if recipe.momentum:  # torch leaves the buffer uninitialised if the first step of fp16 overflows
        for group in made.param_groups:
            for p in group["params"]:
                made.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return made


@optimizer
def adamw(groups: Groups, lr: float | Tensor, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay. The recipe's momentum is the first beta."""
    capturable = isinstance(lr, Tensor)
    made: torch.optim.AdamW = _AdamW(groups, lr=lr, betas=(recipe.momentum, 0.999), fused=True, capturable=capturable)
    return made


def make_optimizer(
    network: nn.Module, recipe: Recipe, device: torch.device, make: Part | None = None
) -> torch.optim.Optimizer:
    """Return the recipe's optimiser, or the one that `make` returns. Weight decay applies only to synapses."""
    # each weight once: layers may share one
    synapses = dict.fromkeys(m.weight for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    decayed = [p for p in synapses if p.requires_grad]
    chosen = {id(p) for p in decayed}
    others = [p for p in network.parameters() if p.requires_grad and id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    lr = torch.tensor(recipe.lr, device=device) if device.type == "cuda" else recipe.lr
    make = make or optimizer.get(recipe.optimizer)
    if make.__module__.startswith("torch."):
        raise ValueError(
            f"optimizer '{recipe.optimizer}': torch's own class knows no recipe; wrap it in a function of groups, lr "
            f"and recipe that returns {make.__name__}(groups, lr=lr)"
        )
    made = make([group for group in groups if group["params"]], lr, recipe)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"optimizer '{recipe.optimizer}': expected a torch.optim.Optimizer, got {type(made).__name__}")
    if isinstance(made, torch.optim.LBFGS):
        raise ValueError(f"optimizer '{recipe.optimizer}': LBFGS repeats steps, which training does not; use another")
    return made


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
