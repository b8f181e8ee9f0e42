"""Every surrogate, reset and decay, worked out by hand; the paper's neuron itself is in `test_lif`."""

from math import atan, log, pi
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import functional
from tests.conformance.neurons import Neuron, law, soma

both = pytest.mark.parametrize("neuron", [law, soma])

# Soft reset, decay = 1/4, v_th = 1/2; all numbers are exact in binary.
#   t      u[t] = v[t-1] / 4 + x[t]                          v[t] = u[t] - s[t] / 2
#   1      0         + 0.25   = 0.25         silent            0.25
#   2      0.0625    + 0.4375 = 0.5          at v_th: silent   0.5
#   3      0.125     + 0.875  = 1.0          spike             0.5
#   4      0.125     + 0.375  = 0.5          at v_th: silent   0.5      (0.375 after a hard reset)
#   5      0.125     + 0.5    = 0.625        spike             0.125
#   6      0.03125   + 0.5    = 0.53125      spike             0.03125  (silent after a hard reset)
#   7      0.0078125 - 0.5    = -0.4921875   silent           -0.4921875
#   8     -0.123046875 + 0.625 = 0.501953125 spike             0.001953125
#   9      0.00048828125 + 0.5 = 0.50048828125 spike           0.00048828125
CURRENT = [0.25, 0.4375, 0.875, 0.375, 0.5, 0.5, -0.5, 0.625, 0.5]
SPIKES = [0, 0, 1, 0, 1, 1, 0, 1, 1]
LEFT = [0.25, 0.5, 0.5, 0.5, 0.125, 0.03125, -0.4921875, 0.001953125, 0.00048828125]


def exact(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@both
def test_spikes_of_a_soft_reset(neuron: Neuron) -> None:
    assert neuron(exact(CURRENT), decay=0.25, v_th=0.5, width=1.0, reset="soft").tolist() == SPIKES


def test_potential_of_a_soft_reset_step_by_step() -> None:
    v = torch.zeros(1, dtype=torch.float64)
    for x, spike, left in zip(CURRENT, SPIKES, LEFT, strict=True):
        s, v = functional.lif_step(exact([x]), v, decay=0.25, v_th=0.5, reset="soft")
        assert (s.item(), v.item()) == (spike, left)


@both
def test_potential_of_a_soft_reset_from_the_spikes(neuron: Neuron) -> None:
    """A last input of v_th - v/4 is silent and the next larger one fires, so the potential before it was v."""
    for t, left in enumerate(LEFT):
        for last, expected in ((0.5 - left / 4, 0), (0.5 - left / 4 + 1e-12, 1)):
            x = exact([*CURRENT[: t + 1], last])
            assert neuron(x, decay=0.25, v_th=0.5, width=1.0, reset="soft")[-1] == expected


@pytest.mark.parametrize(
    ("initial", "reset", "spikes"),
    [
        # decay = 1: what came in is what went out and what is left. x = 0.1875 at every step.
        (0.0, "hard", [0, 0, 1, 0, 0, 1]),  # u = 0.1875, 0.375, 0.5625 and again
        (0.25, "hard", [0, 1, 0, 0, 1, 0]),  # u = 0.4375, 0.625; 0.1875, 0.375, 0.5625; 0.1875
        (0.0, "soft", [0, 0, 1, 0, 0, 1]),  # u = 0.1875, 0.375, 0.5625; 0.25, 0.4375, 0.625
        (0.25, "soft", [0, 1, 0, 0, 1, 0]),  # u = 0.4375, 0.625; 0.3125, 0.5 (v_th), 0.6875; 0.375
        (-0.1875, "soft", [0, 0, 0, 1, 0, 0]),  # u = 0, 0.1875, 0.375, 0.5625; 0.25, 0.4375
    ],
)
def test_integrate_and_fire_from_an_initial_potential(initial: float, reset: str, spikes: list[int]) -> None:
    x = exact([0.1875] * 6)
    assert functional.lif(x, decay=1.0, v_th=0.5, width=1.0, reset=reset, initial=initial).tolist() == spikes
    start = torch.full((), initial, dtype=torch.float64)
    assert functional.lif(x, decay=1.0, v_th=0.5, width=1.0, reset=reset, initial=start).tolist() == spikes


def test_the_first_step_decays_the_initial_potential() -> None:
    """u[1] = 0.5 * 0.5 + 0.25 = 0.5 is silent at v_th; a little more fires."""
    spikes = [
        functional.lif(exact([0.25]), decay=0.5, v_th=0.5, width=1.0, initial=start).item() for start in (0.5, 0.5001)
    ]
    assert spikes == [0, 1]


def gradients(neuron: Neuron, x: list[float], **choices: Any) -> tuple[list[float], float]:
    """By x and by the decay of L = 3 s[1] + 5 s[2] + 7 s[3], cut to the length of x."""
    inputs, decay = exact(x).requires_grad_(), torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    spikes = neuron(inputs, decay=decay, v_th=0.5, width=2.0, **choices)
    (spikes * exact([3.0, 5.0, 7.0])[: len(x)]).sum().backward()
    assert inputs.grad is not None
    assert decay.grad is not None
    return inputs.grad.tolist(), decay.grad.item()


@both
@pytest.mark.parametrize(
    ("reset", "gradient", "by_x", "by_decay"),
    [
        # width = 2: h = 1/2 for -1/2 < u < 3/2, which holds for every u here.
        # L_u[3] = 7 h = 3.5, L_v[2] = L_u[3] / 4 = 0.875
        #
        # hard: u = 0.75 (spike), 0.5 (silent), 0.125 + 0.25 = 0.375 (silent);  v = 0, 0.5
        #   L_u[2] = h (5 - 0.875 * 0.5) + 0.875  = 3.15625         without the reset's gradient: h * 5 + 0.875 = 3.375
        #   L_u[1] = h (3 - 3.15625 / 4 * 0.75)   = 1.2041015625                                  h * 3         = 1.5
        #   L_k    = 3.15625 * 0 + 3.5 * 0.5      = 1.75                                                          1.75
        ("hard", True, [1.2041015625, 3.15625, 3.5], 1.75),
        ("hard", False, [1.5, 3.375, 3.5], 1.75),
        # soft: u = 0.75 (spike), 0.0625 + 0.5 = 0.5625 (spike), 0.015625 + 0.25 (silent);  v = 0.25, 0.0625
        #   L_u[2] = h (5 - 0.875 * 0.5) + 0.875        = 3.15625         without: h * 5 + 0.875     = 3.375
        #   L_u[1] = h (3 - 0.7890625 * 0.5) + 0.7890625 = 2.091796875             h * 3 + 0.84375   = 2.34375
        #   L_k    = 3.15625 * 0.25 + 3.5 * 0.0625      = 1.0078125                0.84375 + 0.21875 = 1.0625
        ("soft", True, [2.091796875, 3.15625, 3.5], 1.0078125),
        ("soft", False, [2.34375, 3.375, 3.5], 1.0625),
    ],
)
def test_gradients_through_the_reset(
    neuron: Neuron, reset: str, gradient: bool, by_x: list[float], by_decay: float
) -> None:
    found = gradients(neuron, [0.75, 0.5, 0.25], reset=reset, reset_gradient=gradient)
    assert found[0] == pytest.approx(by_x, rel=1e-12)
    assert found[1] == pytest.approx(by_decay, rel=1e-12)


# Where a surrogate of width 2 is easily said: ds/du = h at the distances d and -d from v_th.
EASY = [
    ("rectangle", 0.75, 1 / 2),  # inside of the window
    ("rectangle", 1.25, 0.0),
    ("triangle", 0.5, 3 / 8),  # (1 - 0.5 / 2) / 2
    ("triangle", 2.5, 0.0),
    ("sigmoid", 2 / 4 * log(3), 3 / 8),  # the logistic function is 3/4 there: 4 / 2 * 3/4 * 1/4
    ("atan", 2 / pi, 1 / 4),  # 1 / (1 + 1^2) / 2
]


@both
@pytest.mark.parametrize(("surrogate", "d", "h"), EASY)
def test_gradients_of_each_surrogate(neuron: Neuron, surrogate: str, d: float, h: float) -> None:
    """u[1] = v_th + d (spike, hard reset), u[2] = v_th - d (silent).

    L_u[2] = 5 h;  L_u[1] = h (3 - L_u[2] / 4 * u[1]);  L_k = L_u[2] * 0. From below, u[1] = v_th - d (silent) and
    u[2] = (v_th - d) / 4 + x[2] = v_th + d:  L_u[1] = h (3 - L_u[2] / 4 * u[1]) + L_u[2] / 4;  L_k = L_u[2] * u[1].
    """
    above, below = 0.5 + d, 0.5 - d
    by_x, by_decay = gradients(neuron, [above, below], surrogate=surrogate)
    assert by_x == pytest.approx([h * (3 - 5 * h / 4 * above), 5 * h], rel=1e-12)
    assert by_decay == 0
    by_x, by_decay = gradients(neuron, [below, above - below / 4], surrogate=surrogate)
    assert by_x == pytest.approx([h * (3 - 5 * h / 4 * below) + 5 * h / 4, 5 * h], rel=1e-12)
    assert by_decay == pytest.approx(5 * h * below, rel=1e-12)


@pytest.mark.parametrize("width", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("surrogate", functional.SURROGATES)
def test_a_surrogate_has_area_one_and_height_one_over_its_width(surrogate: str, width: float) -> None:
    slope = functional.SURROGATES[surrogate]
    d = torch.linspace(-50 * width, 50 * width, 200_001, dtype=torch.float64)
    area = torch.trapezoid(slope(d, width), d).item()
    inside = 2 / pi * atan(50 * pi) if surrogate == "atan" else 1.0  # it has long tails
    assert area == pytest.approx(inside, abs=1e-3 if surrogate == "rectangle" else 1e-6)  # its edges lie in a cell
    assert slope(exact([0.0]), width).item() == pytest.approx(1 / width)
    assert slope(d, width).max().item() == pytest.approx(1 / width)


@pytest.mark.parametrize("width", [0.4, 1.0, 3.0])
@pytest.mark.parametrize(
    ("surrogate", "primitive"),
    [
        ("sigmoid", lambda d, width: torch.sigmoid(4 * d / width)),
        ("atan", lambda d, width: torch.atan(pi * d / width) / pi),
    ],
)
def test_smooth_surrogates_are_derivatives(surrogate: str, primitive: Any, width: float) -> None:
    """By finite differences: of a step that goes from 0 to 1 smoothly."""
    d, little = torch.linspace(-5, 5, 101, dtype=torch.float64), 1e-5
    difference = (primitive(d + little, width) - primitive(d - little, width)) / (2 * little)
    torch.testing.assert_close(functional.SURROGATES[surrogate](d, width), difference, rtol=1e-6, atol=1e-8)


def test_a_decay_per_channel_is_that_of_the_channel_alone() -> None:
    x = torch.randn(6, 2, 3, 4, 5, dtype=torch.float64)
    decay = exact([0.1, 0.5, 1.0])
    together = law(x, decay=decay, v_th=0.5, width=1.0)
    for c, own in enumerate(decay.tolist()):
        assert torch.equal(together[:, :, c], law(x[:, :, c], decay=own, v_th=0.5, width=1.0))
    assert torch.equal(law(x, decay=exact([0.5]), v_th=0.5, width=1.0), law(x, decay=0.5, v_th=0.5, width=1.0))
