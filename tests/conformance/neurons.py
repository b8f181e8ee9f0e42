"""Single neurons to run by hand: the law, and a soma whose tdBN is made the identity."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rheobase import functional
from rheobase.nn import Soma

Neuron = Callable[..., Tensor]  # neuron(x [T], decay=, v_th=, width=, and choices) -> spikes [T]


def law(x: Tensor, *, decay: float | Tensor, v_th: float, width: float, **choices: Any) -> Tensor:
    return functional.lif(x, decay=decay, v_th=v_th, width=width, **choices)


def soma(x: Tensor, *, decay: float | Tensor, v_th: float, width: float, **choices: Any) -> Tensor:
    """A soma of one channel whose running moments undo the scale: v_th * (x - 0) / sqrt(v_th^2) = x, exactly."""
    eps = 2.0**-10
    module = Soma(1, v_th=v_th, width=width, eps=eps, **choices).double().eval()
    module.running_var.fill_(v_th**2 - eps)
    module.decay = decay
    return module(x[:, None, None])[:, 0, 0]
