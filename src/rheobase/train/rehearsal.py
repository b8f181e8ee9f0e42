"""Compile the kernels of a training step before it, all at once. Otherwise, the step compiles them one by one."""

from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn

from rheobase import kernels
from rheobase.data.feed import Feed
from rheobase.extras import installed
from rheobase.kernels.fused import Constants, Received, empty_like_sequence
from rheobase.nn import Soma
from rheobase.recipes import Recipe
from rheobase.train.step import autocast


def rehearse(network: nn.Module, recipe: Recipe, feed: Feed, timesteps: int) -> None:
    """Compile what a training step needs on a GPU. The network does not change.

    If this fails, as with a user's own part or with Triton 3.5, the step compiles its kernels one by one.
    """
    if feed.device.type == "cuda" and installed("triton"):
        from rheobase.kernels import ahead

        with suppress(Exception):
            ahead.compile_training(received(network, recipe, feed.blank(timesteps), timesteps))


@torch.no_grad()
def received(network: nn.Module, recipe: Recipe, images: Tensor, timesteps: int) -> list[Received]:
    """Return what the somas of the network receive. All other layers run, so cuDNN chooses its algorithms as well."""
    found: list[Received] = []

    def silent(soma: Soma, *xs: Tensor) -> Tensor:
        found.append(_noted(soma, xs))
        spikes = empty_like_sequence(xs[0]).zero_()
        kernels.mark_spikes(spikes)
        return spikes

    modes = {module: module.training for module in network.modules()}
    somas = [module for module in modes if isinstance(module, Soma) and type(module).forward is Soma.forward]
    network.eval()  # so that no statistics change and no random numbers are drawn
    for soma in somas:
        soma.forward = partial(silent, soma)  # type: ignore[method-assign]
    try:
        with autocast(recipe, images.device):
            network(images, timesteps)
    finally:
        for soma in somas:
            del soma.forward
        for module, mode in modes.items():
            module.training = mode
    return found


def _noted(soma: Soma, xs: tuple[Tensor, ...]) -> Received:
    learns = soma.learn_decay != "none"
    shared = (soma.v_th, soma.width, soma.eps, soma.surrogate, soma.reset, soma.reset_gradient)
    return Received(
        tuple((x.shape, x.stride(), x.dtype) for x in xs),
        Constants(0.0 if learns else soma.decay, *shared),
        learns_decay=learns,
        normalises=soma.normalize,
        members=None if soma.group is None else soma.group.size(),
        packs=soma.pack,
        reads_bits=soma.pack and len(xs) == 2 and kernels.are_marked(xs[1]) and kernels.readable(xs[1].stride(), xs[0]),
    )
