"""One optimiser step as a plain function of a batch. It does not synchronise with the host, so it can be captured."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import cos, pi

import torch
from torch import Tensor, nn

from rheobase import plugins
from rheobase.functional import readout
from rheobase.kernels.processor import has_bf16
from rheobase.recipes import Recipe
from rheobase.train import losses  # noqa: F401 (it registers the built-in ones)
from rheobase.train.casting import in_few_kernels

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES = {"fp64": torch.float64}  # of weights and images; float32 for all other precisions

Step = Callable[..., tuple[Tensor, ...]]
"""step(images, labels, share=1.0) -> summed loss, correct images, gradient norm"""


def for_device(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with the precision to compute in on `device`.

    That is the recipe's own, but for bf16 where the hardware cannot multiply in it and would take many times as long: a
    CPU then computes in fp32, a GPU (before NVIDIA's Ampere) in fp16.
    """
    if recipe.precision == "bf16" and device.type == "cpu" and not has_bf16():
        return replace(recipe, precision="fp32")
    if recipe.precision == "bf16" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return replace(recipe, precision="fp16")
    return recipe


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Return the autocast context for the recipe's precision."""
    dtype = AUTOCAST.get(recipe.precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def loss_of(logits: Tensor, labels: Tensor, recipe: Recipe, loss: plugins.Part | None = None) -> Tensor:
    """Return the mean loss of logits [T, N, K], by the function `loss` or the recipe's."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    found = (loss or plugins.loss.get(recipe.loss))(logits, labels, recipe)
    if not isinstance(found, Tensor) or found.ndim:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"loss '{recipe.loss}': expected one number as a tensor, got {got}; return the mean")
    return found


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """Return the learning rate at a time in epochs, which may be fractional."""
    warmup = min(1.0, epoch / recipe.warmup_epochs) if recipe.warmup_epochs else 1.0
    if recipe.schedule == "cosine":
        return recipe.lr * warmup * 0.5 * (1 + cos(pi * (epoch / recipe.epochs)))
    return recipe.lr * warmup * 0.1 ** (epoch // recipe.step_epochs)


def make_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    recipe: Recipe,
    timesteps: int,
    average: nn.Module | None = None,
    loss: plugins.Part | None = None,
    classes: int | None = None,
    summed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Step:
    """Return a function that runs one optimiser step on a batch, in the precision of the recipe (see `for_device`).

    Its argument `share` is this process's fraction of the global batch; `summed` sums the gradients of all processes.
    If `classes` is given, the logits must have that many.
    """
    parameters = list(network.parameters())
    forward = in_few_kernels(network, AUTOCAST.get(recipe.precision))

    def step(images: Tensor, labels: Tensor, share: float = 1.0) -> tuple[Tensor, ...]:
        if scaler.is_enabled():
            scaler._per_optimizer_states.clear()  # left by a step that was aborted, for example in a capture
        with autocast(recipe, images.device):
            logits = forward(images, timesteps)
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        shape = [timesteps, len(labels), classes or got[-1]]
        if got != shape:
            raise ValueError(f"network '{recipe.network}': expected logits [T, N, K] = {shape}, got {got}")
        value = loss_of(logits, labels, recipe, loss)
        if not value.requires_grad:
            raise ValueError(
                f"loss '{recipe.loss}' of network '{recipe.network}': no gradient leads from it to any parameter; "
                "look for detach, no_grad, or spikes without a surrogate"
            )
        optimizer.zero_grad()
        with summed():
            scaler.scale(value * share).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        if average is not None:
            update_average(average, network, recipe.average)
        with torch.no_grad():
            if scaler.is_enabled():  # a step that overflows is skipped, so it has no norm
                norm = norm.nan_to_num(0.0, 0.0, 0.0)
            correct = (readout(logits).argmax(1) == labels).sum()
            return value * len(labels), correct, norm

    return step


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Set average to decay * average + (1 - decay) * network, including running statistics. Copy integers."""
    pairs = [
        *zip(average.parameters(), network.parameters(), strict=True),
        *zip(average.buffers(), network.buffers(), strict=True),
    ]
    own, new = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
    torch._foreach_lerp_(list(own), list(new), 1 - decay)
    for kept, counted in (pair for pair in pairs if not pair[0].is_floating_point()):
        kept.copy_(counted)
