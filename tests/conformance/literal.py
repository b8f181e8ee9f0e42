"""`fire` and its gradients one number at a time: Eq. 2-8 forward, Eq. 14-16 and the chain rule of Eq. 5-8 backward.

No tensors and no automatic differentiation, so that nothing is shared with the law it checks.
"""

from dataclasses import dataclass
from itertools import product
from math import exp, pi, sqrt

import numpy as np

Array = np.ndarray


# ds/du at the distance d of u from v_th
SLOPES = {
    "rectangle": lambda d, width: 1 / width if -width / 2 < d < width / 2 else 0.0,  # Eq. 16
    "triangle": lambda d, width: max(0.0, 1 - abs(d) / width) / width,
    "sigmoid": lambda d, width: 4 / width / (1 + exp(-4 * d / width)) / (1 + exp(4 * d / width)),
    "atan": lambda d, width: width / (width**2 + (pi * d) ** 2),
}


@dataclass
class Outcome:
    spikes: Array  # [T, N, C, H, W]
    mean: Array  # [n, C]
    var: Array  # [n, C]
    grad_xs: list[Array]  # n of [T, N, C, H, W]
    grad_weight: Array  # [n, C]
    grad_bias: Array  # [n, C]
    grad_decay: Array  # [C]


def fire(
    xs: list[Array],
    weight: Array,
    bias: Array,
    grad: Array,
    *,
    decay: float | list[float],
    v_th: float,
    width: float,
    eps: float,
    surrogate: str = "rectangle",
    reset: str = "hard",
    reset_gradient: bool = True,
    moments: tuple[Array, Array] | None = None,
) -> Outcome:
    """What `functional.fire` returns, and the gradients of sum(spikes * grad); the decay is one, or one per channel."""
    T, N, C, H, W = xs[0].shape
    n = len(xs)
    scale = v_th / sqrt(n)
    mean, var = np.zeros((n, C)), np.zeros((n, C))
    current = np.zeros((T, N, C, H, W))
    for b, c in product(range(n), range(C)):
        values = [xs[b][t, i, c, y, x] for t, i, y, x in product(range(T), range(N), range(H), range(W))]
        if moments is None:
            mean[b, c] = sum(values) / len(values)
            var[b, c] = sum((value - mean[b, c]) ** 2 for value in values) / len(values)
        else:
            mean[b, c], var[b, c] = moments[0][b, c], moments[1][b, c]
        for t, i, y, x in product(range(T), range(N), range(H), range(W)):
            hat = scale * (xs[b][t, i, c, y, x] - mean[b, c]) / sqrt(var[b, c] + eps)
            current[t, i, c, y, x] += weight[b, c] * hat + bias[b, c]

    spikes, grad_current, grad_decay = np.zeros_like(current), np.zeros_like(current), np.zeros(C)
    for i, c, y, x in product(range(N), range(C), range(H), range(W)):
        k = decay[c] if isinstance(decay, list) else decay
        u, s, v = [0.0] * T, [0.0] * T, [0.0] * T
        for t in range(T):
            u[t] = (k * v[t - 1] if t > 0 else 0.0) + current[t, i, c, y, x]
            s[t] = 1.0 if u[t] > v_th else 0.0
            v[t] = u[t] * (1 - s[t]) if reset == "hard" else u[t] - v_th * s[t]
            spikes[t, i, c, y, x] = s[t]
        after = 0.0  # dL/du of the following step
        for t in reversed(range(T)):
            grad_decay[c] += after * v[t]
            dv_ds = (-u[t] if reset == "hard" else -v_th) if reset_gradient else 0.0
            by_spike = grad[t, i, c, y, x] + after * k * dv_ds  # Eq. 14
            dv_du = 1 - s[t] if reset == "hard" else 1.0
            after = by_spike * SLOPES[surrogate](u[t] - v_th, width) + after * k * dv_du  # Eq. 15, 18
            grad_current[t, i, c, y, x] = after

    grad_xs = [np.zeros_like(current) for _ in range(n)]
    grad_weight, grad_bias = np.zeros((n, C)), np.zeros((n, C))
    places = list(product(range(T), range(N), range(H), range(W)))
    for b, c in product(range(n), range(C)):
        root = sqrt(var[b, c] + eps)
        by_mean, by_var = 0.0, 0.0
        for t, i, y, x in places:
            du, centred = grad_current[t, i, c, y, x], xs[b][t, i, c, y, x] - mean[b, c]
            grad_bias[b, c] += du
            grad_weight[b, c] += du * scale * centred / root
            if moments is None:
                by_mean -= du * weight[b, c] * scale / root
                by_var -= du * weight[b, c] * scale * centred / (2 * root**3)
        for t, i, y, x in places:
            du, centred = grad_current[t, i, c, y, x], xs[b][t, i, c, y, x] - mean[b, c]
            direct = du * weight[b, c] * scale / root
            grad_xs[b][t, i, c, y, x] = direct + (by_mean + by_var * 2 * centred) / len(places)
    return Outcome(spikes, mean, var, grad_xs, grad_weight, grad_bias, grad_decay)
