"""Single neurons to run by hand: the law, and a soma whose tdBN is made the identity."""

from collections.abc import Callable

from torch import Tensor

from rheobase import functional
from rheobase.nn import Soma

Neuron = Callable[..., Tensor]  # neuron(x [T], decay=, v_th=, width=) -> spikes [T]


def law(x: Tensor, *, decay: float, v_th: float, width: float) -> Tensor:
    return functional.lif(x, decay=decay, v_th=v_th, width=width)


def soma(x: Tensor, *, decay: float, v_th: float, width: float) -> Tensor:
    """A soma of one channel whose running moments undo the scale: v_th * (x - 0) / sqrt(v_th^2) = x, exactly."""
    eps = 2.0**-10
    module = Soma(1, decay=decay, v_th=v_th, width=width, eps=eps).double().eval()
    module.running_var.fill_(v_th**2 - eps)
    return module(x[:, None, None])[:, 0, 0]
