"""The neuron (Eq. 1-3) and its gradient (Eq. 14-16, 18), worked out by hand.

Every trace runs through the law and through a soma: whatever computes the soma has to reproduce the same numbers.
"""

import pytest
import torch

from rheobase import functional
from tests.conformance.neurons import Neuron, law, soma

both = pytest.mark.parametrize("neuron", [law, soma])

# decay = 1/4, v_th = 1/2; all numbers are exact in binary.
#   t      u[t] = u[t-1] / 4 (0 after a spike) + x[t]
#   1      0       + 0.25     =  0.25                         silent
#   2      0.0625  + 0.4375   =  0.5        exactly at v_th:  silent
#   3      0.125   + 0.5      =  0.625                        spike, reset
#   4      0       + 0.375    =  0.375                        silent (0.15625 more without the reset: a spike)
#   5      0.09375 - 0.5      = -0.40625                      silent
#   6     -0.1015625 + 0.625  =  0.5234375                    spike, reset
#   7      0       + 0.25     =  0.25                         silent
#   8      0.0625  + 0        =  0.0625                       silent: decay alone
#   9      0.015625 + 0.5     =  0.515625                     spike (not without what is left of step 7)
CURRENT = [0.25, 0.4375, 0.5, 0.375, -0.5, 0.625, 0.25, 0.0, 0.5]
POTENTIAL = [0.25, 0.5, 0.625, 0.375, -0.40625, 0.5234375, 0.25, 0.0625, 0.515625]
SPIKES = [0, 0, 1, 0, 0, 1, 0, 0, 1]


@both
def test_spikes_of_the_hand_trace(neuron: Neuron) -> None:
    x = torch.tensor(CURRENT, dtype=torch.float64)
    assert neuron(x, decay=0.25, v_th=0.5, width=1.0).tolist() == SPIKES


def test_potential_of_the_hand_trace_step_by_step() -> None:
    v = torch.zeros(1, dtype=torch.float64)
    for x, u, spike in zip(CURRENT, POTENTIAL, SPIKES, strict=True):
        s, v = functional.lif_step(torch.tensor([x], dtype=torch.float64), v, decay=0.25, v_th=0.5)
        assert s.item() == spike
        assert v.item() == (0 if spike else u)


@both
def test_potential_of_the_hand_trace_from_the_spikes(neuron: Neuron) -> None:
    """A last input of v_th - u/4 is silent and the next larger one fires, so the potential before it was u."""
    for t, (u, spike) in enumerate(zip(POTENTIAL, SPIKES, strict=True)):
        silent = torch.tensor(0.5 - (0 if spike else u) / 4, dtype=torch.float64)
        for last, expected in ((silent, 0), (silent + 1e-12, 1)):
            x = torch.cat([torch.tensor(CURRENT[: t + 1], dtype=torch.float64), last[None]])
            assert neuron(x, decay=0.25, v_th=0.5, width=1.0)[-1] == expected


@both
@pytest.mark.parametrize(
    ("decay", "spikes"),
    [
        (0.0, [0, 0, 0, 0]),  # nothing is kept: u = 0.375 at every step
        (0.25, [0, 0, 0, 0]),  # u = 0.375, 0.46875, 0.4921875, 0.498046875: below v_th for ever
        (0.5, [0, 1, 0, 1]),  # u = 0.375, 0.5625, 0.375, 0.5625
        (1.0, [0, 1, 0, 1]),  # u = 0.375, 0.75, 0.375, 0.75
    ],
)
def test_decay(neuron: Neuron, decay: float, spikes: list[int]) -> None:
    x = torch.full((4,), 0.375, dtype=torch.float64)
    assert neuron(x, decay=decay, v_th=0.5, width=1.0).tolist() == spikes


def chain_gradients(neuron: Neuron, x1: list[float], b: list[float]) -> tuple[list[float], float]:
    """Gradients by x1 and w of L = 3 s2[1] + 5 s2[2], where neuron 1 drives neuron 2: x2[t] = w s1[t] + b[t]."""
    x = torch.tensor(x1, dtype=torch.float64, requires_grad=True)
    w = torch.tensor(0.75, dtype=torch.float64, requires_grad=True)
    s1 = neuron(x, decay=0.25, v_th=0.5, width=2.0)
    s2 = neuron(w * s1 + torch.tensor(b, dtype=torch.float64), decay=0.25, v_th=0.5, width=2.0)
    (s2 * torch.tensor([3.0, 5.0], dtype=torch.float64)).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return x.grad.tolist(), w.grad.item()


@both
def test_gradients_of_a_chain_that_fires_first(neuron: Neuron) -> None:
    """width = 2: ds/du = h = 1/2 for -1/2 < u < 3/2, which holds for every u here.

    u1 = 0.75 (spike), 0 + 0.25 = 0.25 (silent);  u2 = 0.75 * 1 + 0 = 0.75 (spike), 0 + 0.375 = 0.375 (silent)

    L_u2[2] = 5 h                                                                                     = 2.5
    L_s2[1] = 3 + L_u2[2] * (-decay u2[1])                     = 3 - 2.5 * 0.25 * 0.75                = 2.53125
    L_u2[1] = L_s2[1] h + L_u2[2] * decay (1 - s2[1])          = 1.265625 + 0                         = 1.265625
    L_w     = L_u2[1] s1[1] + L_u2[2] s1[2]                                                           = 1.265625
    L_u1[2] = w L_u2[2] h                                      = 0.75 * 2.5 * 0.5                     = 0.9375
    L_s1[1] = w L_u2[1] + L_u1[2] * (-decay u1[1])             = 0.94921875 - 0.9375 * 0.25 * 0.75    = 0.7734375
    L_u1[1] = L_s1[1] h + L_u1[2] * decay (1 - s1[1])          = 0.38671875 + 0                       = 0.38671875
    """
    by_x, by_w = chain_gradients(neuron, x1=[0.75, 0.25], b=[0.0, 0.375])
    assert by_x == pytest.approx([0.38671875, 0.9375], rel=1e-12)
    assert by_w == pytest.approx(1.265625, rel=1e-12)


@both
def test_gradients_of_a_chain_that_fires_last(neuron: Neuron) -> None:
    """Silent at the first step, so that the leak carries gradient back in time, and the reset path as well.

    u1 = 0.25 (silent), 0.0625 + 0.75 = 0.8125 (spike);  u2 = 0.25 (silent), 0.0625 + 0.75 = 0.8125 (spike)

    L_u2[2] = 5 h                                                                                     = 2.5
    L_s2[1] = 3 + L_u2[2] * (-decay u2[1])                     = 3 - 2.5 * 0.25 * 0.25                = 2.84375
    L_u2[1] = L_s2[1] h + L_u2[2] * decay (1 - s2[1])          = 1.421875 + 0.625                     = 2.046875
    L_w     = L_u2[1] s1[1] + L_u2[2] s1[2]                    = 0 + 2.5                              = 2.5
    L_u1[2] = w L_u2[2] h                                                                             = 0.9375
    L_s1[1] = w L_u2[1] + L_u1[2] * (-decay u1[1])             = 1.53515625 - 0.9375 * 0.25 * 0.25    = 1.4765625
    L_u1[1] = L_s1[1] h + L_u1[2] * decay (1 - s1[1])          = 0.73828125 + 0.234375                = 0.97265625
    """
    by_x, by_w = chain_gradients(neuron, x1=[0.25, 0.75], b=[0.25, 0.0])
    assert by_x == pytest.approx([0.97265625, 0.9375], rel=1e-12)
    assert by_w == pytest.approx(2.5, rel=1e-12)


@both
@pytest.mark.parametrize(
    ("x1", "first"),
    [
        # L = 3 s[1] + 5 s[2], width = 1: ds/du = 1 for 0 < u < 1. u[2] lies inside, so L_u[2] = 5.
        (0.0, 1.25),  # lower edge, ds/du = 0, silent: only the leak, 5 * 0.25
        (1.0, 0.0),  # upper edge, ds/du = 0, fired: nothing gets through
        (0.25, 3.9375),  # inside, silent: 3 - 5 * 0.25 * 0.25 by the spike, + 1.25 by the leak
        (0.75, 2.0625),  # inside, fired: 3 - 5 * 0.25 * 0.75 by the spike
        (-0.25, 1.25),  # outside, silent
        (1.25, 0.0),  # outside, fired
    ],
)
def test_gradients_at_both_edges_of_the_window(neuron: Neuron, x1: float, first: float) -> None:
    x = torch.tensor([x1, 0.5], dtype=torch.float64, requires_grad=True)
    spikes = neuron(x, decay=0.25, v_th=0.5, width=1.0)
    (spikes * torch.tensor([3.0, 5.0], dtype=torch.float64)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([first, 5.0], rel=1e-12)


@pytest.mark.parametrize(("v_th", "width"), [(0.5, 1.0), (0.25, 2.0), (1.0, 0.5)])
def test_window_of_the_surrogate(v_th: float, width: float) -> None:
    inside = torch.tensor([v_th - width * 0.499, v_th, v_th + width * 0.499], requires_grad=True)
    outside = torch.tensor([v_th - width / 2, v_th + width / 2, v_th - width, v_th + width], requires_grad=True)
    for u, expected in ((inside, 1 / width), (outside, 0.0)):
        functional.spike(u, v_th=v_th, width=width).sum().backward()
        assert u.grad is not None
        assert u.grad.tolist() == [expected] * len(u)


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 3, 4, 6)])
def test_neurons_do_not_see_each_other(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    together = law(x, decay=0.25, v_th=0.5, width=1.0)
    alone = [law(column, decay=0.25, v_th=0.5, width=1.0) for column in x.reshape(5, -1).T]
    assert torch.equal(together.reshape(5, -1), torch.stack(alone, 1))


def test_half_precision_is_computed_in_float32() -> None:
    # u[2] = 0.484375 / 4 + 0.380859375 = 0.501953125 > 0.5; bfloat16 has no number between 0.5 and 0.50390625 and
    # would round it to 0.5: no spike.
    x = torch.tensor([0.484375, 0.380859375], dtype=torch.bfloat16)
    assert x.tolist() == [0.484375, 0.380859375]
    assert (x[0] / 4 + x[1]).item() == 0.5
    spikes = law(x, decay=0.25, v_th=0.5, width=1.0)
    assert spikes.dtype == torch.bfloat16
    assert spikes.tolist() == [0, 1]
    s, _ = functional.lif_step(x[1:], x[:1].float(), decay=0.25, v_th=0.5)
    assert s.dtype == torch.bfloat16
    assert s.item() == 1
