"""`fire` and its gradients one number at a time: Eq. 2-8 forward, Eq. 14-16 and the chain rule of Eq. 5-8 backward.

No tensors and no automatic differentiation, so that nothing is shared with the law it checks.
"""

from dataclasses import dataclass
from itertools import product
from math import sqrt

import numpy as np

Array = np.ndarray


@dataclass
class Outcome:
    spikes: Array  # [T, N, C, H, W]
    mean: Array  # [n, C]
    var: Array  # [n, C]
    grad_xs: list[Array]  # n of [T, N, C, H, W]
    grad_weight: Array  # [n, C]
    grad_bias: Array  # [n, C]


def fire(
    xs: list[Array],
    weight: Array,
    bias: Array,
    grad: Array,
    *,
    decay: float,
    v_th: float,
    width: float,
    eps: float,
    moments: tuple[Array, Array] | None = None,
) -> Outcome:
    """What `functional.fire` returns, and the gradients of sum(spikes * grad)."""
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

    spikes, grad_current = np.zeros_like(current), np.zeros_like(current)
    for i, c, y, x in product(range(N), range(C), range(H), range(W)):
        u, s = [0.0] * T, [0.0] * T
        for t in range(T):
            before = decay * u[t - 1] * (1 - s[t - 1]) if t > 0 else 0.0
            u[t] = before + current[t, i, c, y, x]
            s[t] = 1.0 if u[t] > v_th else 0.0
            spikes[t, i, c, y, x] = s[t]
        after = 0.0  # dL/du of the following step
        for t in reversed(range(T)):
            by_spike = grad[t, i, c, y, x] - after * decay * u[t]  # Eq. 14
            slope = 1 / width if v_th - width / 2 < u[t] < v_th + width / 2 else 0.0  # Eq. 16
            after = by_spike * slope + after * decay * (1 - s[t])  # Eq. 15, 18
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
    return Outcome(spikes, mean, var, grad_xs, grad_weight, grad_bias)
