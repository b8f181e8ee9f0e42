"""What the Triton kernels of a soma are made of: tiles of a sequence, packed spikes, tdBN, and one step of the neurons.

The tiles are described in `triton_kernels`. The surrogates are those of `functional`.
"""

import triton
import triton.language as tl


@triton.jit
def offsets(row, column, rows, channels, stride_n, stride_c, PIXELS: tl.constexpr):
    """Where a tile of one step lies: offsets and the mask of what exists, both [ROWS, CHANNELS]."""
    n = (row // PIXELS).to(tl.int64) * stride_n + row % PIXELS
    return n[:, None] + column[None, :] * stride_c, (row < rows)[:, None] & (column < channels)[None, :]


@triton.jit
def coefficients(weight, bias, mean, var, branch, channel, channels, K: tl.constexpr, EPS: tl.constexpr):
    """tdBN of one branch as x * scale + shift; mean and 1 / sqrt(var + eps) beside it."""
    at = branch * channels + channel
    mask = channel < channels
    mean = tl.load(mean + at, mask, other=0)
    rstd = tl.rsqrt(tl.load(var + at, mask, other=1) + EPS)
    scale = tl.load(weight + at, mask, other=0) * K * rstd
    return scale, tl.load(bias + at, mask, other=0) - mean * scale, mean, rstd


@triton.jit
def channels_of_tile(column, ROWS: tl.constexpr):
    """The channel of every element [ROWS, CHANNELS] of a tile.

    With it, each thread loads the values of its own channels. One load per channel would be less, but would have to be
    passed on between threads, through barriers.
    """
    return tl.broadcast_to(column[None, :], (ROWS, column.shape[0]))


@triton.jit
def load_step(x, t, stride_t, at, mask, T: tl.constexpr, SEGMENT: tl.constexpr):
    """The tile at step t; zeros after the end, which the last segment may reach."""
    if T % SEGMENT != 0:
        mask = mask & (t < T)
    return tl.load(x + t * tl.cast(stride_t, tl.int64) + at, mask, other=0)


@triton.jit
def store_step(x, t, stride_t, at, value, mask, T: tl.constexpr, SEGMENT: tl.constexpr):
    if T % SEGMENT != 0:
        mask = mask & (t < T)
    tl.store(x + t * tl.cast(stride_t, tl.int64) + at, value.to(x.dtype.element_ty), mask)


@triton.jit
def load_bits(bits, row, column, rows, channels, mask, PER_BYTE: tl.constexpr):
    """The packed spikes of a tile: bit t * PER_BYTE of every element is that of step t (`packing.neurons_per_byte`)."""
    sharing = rows // PER_BYTE
    at = (row % sharing).to(tl.int64)[:, None] * channels + column[None, :]
    return tl.load(bits + at, mask, other=0).to(tl.int32) >> (row // sharing)[:, None]


@triton.jit
def spike_of(bits, t, PER_BYTE: tl.constexpr):
    return tl.where((bits >> (t * PER_BYTE)) & 1 != 0, 1.0, 0.0)


@triton.jit
def learnt_decay(decays, channel, channels, otherwise):
    """The decay of every channel if it is learnt, else a value that is not used."""
    decay = otherwise
    if decays is not None:
        decay = tl.load(decays + channel, channel < channels, other=0)
    return decay


@triton.jit
def decayed(v, decay, DECAY: tl.constexpr, LEARNT: tl.constexpr):
    """A fixed decay is a compile-time constant. A learnt decay must not be, or every step would compile a kernel."""
    return decay * v if LEARNT else DECAY * v


@triton.jit
def potential(v, a, b, scale1, scale2, shift, decay, BRANCHES: tl.constexpr, DECAY: tl.constexpr, LEARNT: tl.constexpr):
    """u[t] from the potential v that the step before left and the inputs a, b of the branches."""
    u = decayed(v, decay, DECAY, LEARNT) + (a.to(v.dtype) * scale1 + shift)
    if BRANCHES == 2:
        u += b.to(v.dtype) * scale2
    return u


@triton.jit
def after_reset(u, fired, V_TH: tl.constexpr, SOFT: tl.constexpr):
    return tl.where(fired, u - V_TH, u) if SOFT else tl.where(fired, 0.0, u)


# The surrogates at the distance d = u - v_th, times their width (`functional` has the law).


@triton.jit
def rectangle(d, WIDTH: tl.constexpr):
    return tl.abs(d) < WIDTH / 2


@triton.jit
def triangle(d, WIDTH: tl.constexpr):
    return tl.maximum(1 - tl.abs(d) * (1 / WIDTH), 0.0)


@triton.jit
def sigmoid(d, WIDTH: tl.constexpr):
    e = tl.exp(tl.abs(d) * (-4 / WIDTH))
    return 4 * e / ((1 + e) * (1 + e))


@triton.jit
def atan(d, WIDTH: tl.constexpr):
    z = d * (3.141592653589793 / WIDTH)
    return 1 / (1 + z * z)


@triton.jit
def _surrogate(d, SURROGATE: tl.constexpr, WIDTH: tl.constexpr):
    if SURROGATE == "rectangle":
        slope = rectangle(d, WIDTH)
    elif SURROGATE == "triangle":
        slope = triangle(d, WIDTH)
    elif SURROGATE == "sigmoid":
        slope = sigmoid(d, WIDTH)
    else:
        tl.static_assert(SURROGATE == "atan")
        slope = atan(d, WIDTH)
    return slope  # at the end, because after a return in a branch the compiler continues with what follows


@triton.jit
def through_neuron(
    grad, dv, u, SURROGATE: tl.constexpr, WIDTH: tl.constexpr, V_TH: tl.constexpr, SOFT: tl.constexpr,
    RESET_GRADIENT: tl.constexpr,
):  # fmt: skip
    """The gradient of u, from those of its spike and of the potential v that its step leaves (Eq. 14-15, 18)."""
    slope = _surrogate(u - V_TH, SURROGATE, WIDTH)
    grad = grad.to(u.dtype)
    if RESET_GRADIENT:
        grad -= dv * V_TH if SOFT else dv * u
    if SURROGATE == "rectangle":  # a window, which selects
        du = tl.where(slope, grad / WIDTH, 0.0)
    else:
        du = grad * (slope * (1 / WIDTH))
    return du + (dv if SOFT else tl.where(u > V_TH, 0.0, dv))
