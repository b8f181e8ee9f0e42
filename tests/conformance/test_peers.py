"""SpikingJelly's neurons, set to ours, give the same spikes and gradients in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.nn import Soma

surrogates = pytest.importorskip(
    "spikingjelly.activation_based.surrogate", reason="needs SpikingJelly: make test-peers"
)
neurons = pytest.importorskip("spikingjelly.activation_based.neuron")

T, N, C = 7, 5, 3
V_TH, WIDTH, DECAY = 0.6, 0.9, 0.3
# Their name of a surrogate, and alpha times our width.
PEERS = {
    "rectangle": ("Rect", 1),
    "triangle": ("PiecewiseQuadratic", 1),
    "sigmoid": ("Sigmoid", 4),
    "atan": ("ATan", 2),
}


def their_neuron(kind: str, surrogate: str, reset: str, gradient: bool) -> Any:
    """LIFNode with tau, or ParametricLIFNode with sigmoid(w) = 1 / tau, where our decay is 1 - 1 / tau."""
    name, alpha = PEERS[surrogate]
    tau = {"LIFNode": "tau", "ParametricLIFNode": "init_tau"}[kind]
    return getattr(neurons, kind)(
        **{tau: 1 / (1 - DECAY)},
        decay_input=False,
        v_threshold=V_TH,
        v_reset=0.0 if reset == "hard" else None,
        surrogate_function=getattr(surrogates, name)(alpha=alpha / WIDTH),
        detach_reset=not gradient,
        step_mode="m",
    ).double()


def our_neuron(learn_decay: str, **choices: Any) -> Soma:
    """With a tdBN that changes nothing."""
    soma = (
        Soma(C, decay=DECAY, v_th=V_TH, width=WIDTH, learn_decay=learn_decay, eps=2.0**-10, **choices).double().eval()
    )
    soma.running_var.fill_(V_TH**2 - soma.eps)
    return soma


def run(neuron: Any, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    spikes = neuron(x)
    spikes.backward(grad)
    assert x.grad is not None
    return spikes.detach(), x.grad


@pytest.mark.parametrize("learnt", [False, True], ids=["number", "learnt"])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("reset", functional.RESETS)
@pytest.mark.parametrize("surrogate", functional.SURROGATES)
def test_equals_spikingjelly(surrogate: str, reset: str, gradient: bool, learnt: bool) -> None:
    x, grad = torch.randn(2, T, N, C, dtype=torch.float64).unbind()
    theirs = their_neuron("ParametricLIFNode" if learnt else "LIFNode", surrogate, reset, gradient)
    ours = our_neuron("layer" if learnt else "none", surrogate=surrogate, reset=reset, reset_gradient=gradient)
    if learnt:
        with torch.no_grad():
            ours.decay_logit.copy_(-theirs.w)
    (spikes, by_x), (their_spikes, by_their_x) = run(ours, x, grad), run(theirs, x, grad)
    assert spikes.unique().tolist() == [0, 1]
    assert torch.equal(spikes, their_spikes)
    torch.testing.assert_close(by_x, by_their_x, rtol=1e-9, atol=1e-12)
    if learnt:
        assert ours.decay_logit.grad is not None
        assert ours.decay_logit.grad.abs() > 1e-3
        torch.testing.assert_close(ours.decay_logit.grad[0], -theirs.w.grad, rtol=1e-9, atol=1e-12)
