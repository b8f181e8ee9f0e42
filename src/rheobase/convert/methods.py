"""The methods by name, and the function that applies them."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.convert.calibrated import calibrated
from rheobase.convert.data_norm import data_norm
from rheobase.convert.graph import Choice, relu_graph, spiking
from rheobase.convert.qcfs import qcfs
from rheobase.convert.rmp import rmp
from rheobase.convert.spike_norm import spike_norm
from rheobase.deploy.network import Network
from rheobase.functional import check_choice
from rheobase.nn import QcfsSoma, somas

METHODS: dict[str, Callable[..., Choice]] = {
    "data-norm": data_norm,
    "spike-norm": spike_norm,
    "rmp": rmp,
    "calibrated": calibrated,
    "qcfs": qcfs,
}
"""Methods to choose the thresholds of a converted network, by name."""


@torch.no_grad()
def convert(model: nn.Module, method: str, timesteps: int, images: Tensor | None = None, **options: Any) -> Network:
    """Convert a trained ReLU network to a spiking network with `method`, for this number of timesteps.

    `images` [N, C, H, W] are some of its training images, preprocessed and on its device. `qcfs` needs none. `options`
    belong to the method (see `convert.data_norm`, for example).
    """
    check_choice("method", method, METHODS)
    if timesteps < 1:
        raise ValueError(f"convert: expected at least one timestep, got {timesteps}")
    known = [*signature(METHODS[method]).parameters][3:]
    for name in options:
        if name not in known:
            raise ValueError(f"method {method} has no {name}; leave it out")
    graph = relu_graph(model.eval())
    quantised = any(isinstance(soma, QcfsSoma) for soma in somas(model).values())
    if quantised != (method == "qcfs"):
        raise ValueError(
            "a network that was trained with neuron=qcfs has thresholds of its own; convert it with the method qcfs"
            if quantised
            else "method qcfs needs a network that was trained with neuron=qcfs; choose another method for this one"
        )
    if method != "qcfs" and (images is None or not len(images)):
        raise ValueError(f"method {method} chooses thresholds by training images, but there are none; give some")
    if images is not None and images.ndim != 4:
        raise ValueError(f"convert: expected images [N, C, H, W], got {list(images.shape)}; recordings cannot be used")
    return spiking(graph, METHODS[method](graph, images, timesteps, **options))
