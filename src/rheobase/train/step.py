"""One optimiser step, as a plain function of a batch: no host synchronisation, so that it can be captured."""

from collections.abc import Callable
from math import cos, pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.functional import readout
from rheobase.recipes import Recipe

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES = {"fp64": torch.float64}  # of weights and images; float32 for every other precision

Step = Callable[
    ..., tuple[Tensor, ...]
]  # step(images, labels, share=1.0) -> summed loss, correct images, gradient norm


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    dtype = AUTOCAST.get(recipe.precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def loss_of(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Mean loss of logits [T, N, K]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if recipe.loss == "mean":
        return F.cross_entropy(readout(logits), labels, label_smoothing=recipe.label_smoothing)
    return F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), label_smoothing=recipe.label_smoothing)


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """At a point in time counted in epochs, fractions included."""
    warmup = min(1.0, epoch / recipe.warmup_epochs) if recipe.warmup_epochs else 1.0
    if recipe.schedule == "cosine":
        return recipe.lr * warmup * 0.5 * (1 + cos(pi * min(1.0, epoch / recipe.epochs)))
    return recipe.lr * warmup * 0.1 ** (epoch // recipe.step_epochs)


def make_optimizer(network: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    # once each: layers may share a weight
    decayed = list(dict.fromkeys(m.weight for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)))
    chosen = {id(p) for p in decayed}
    others = [p for p in network.parameters() if id(p) not in chosen]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        # on a GPU the rate is a tensor there, so that a captured step sees it change
        lr=torch.tensor(recipe.lr, device=device) if device.type == "cuda" else recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        fused=True,
    )
    if recipe.momentum:  # torch leaves it uninitialised where the first step of fp16 overflows
        for p in network.parameters():
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def make_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    recipe: Recipe,
    timesteps: int,
    average: nn.Module | None = None,
) -> Step:
    """`share` weighs a process's part of a global batch against the others' (1 when they are equal)."""
    parameters = list(network.parameters())

    def step(images: Tensor, labels: Tensor, share: float = 1.0) -> tuple[Tensor, ...]:
        with autocast(recipe, images.device):
            logits = network(images, timesteps)
        loss = loss_of(logits, labels, recipe)
        optimizer.zero_grad()
        scaler.scale(loss * share).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        if average is not None:
            update_average(average, network, recipe.average)
        with torch.no_grad():
            if scaler.is_enabled():  # a step that overflows is left out, so it has no norm
                norm = norm.nan_to_num(0.0, 0.0, 0.0)
            correct = (readout(logits).argmax(1) == labels).sum()
            return loss * len(labels), correct, norm

    return step


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """average <- decay * average + (1 - decay) * network, running statistics included."""
    for own, new in ((average.parameters(), network.parameters()), (average.buffers(), network.buffers())):
        torch._foreach_lerp_(list(own), list(new), 1 - decay)
