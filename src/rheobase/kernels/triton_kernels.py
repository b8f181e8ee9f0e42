"""The four steps of the fused soma as Triton kernels, for one and two branches, and bare neurons.

One step of a sequence is seen as rows x channels: with channels last a row is a pixel of an image, otherwise (a row of)
P adjacent pixels share a channel. A program owns a tile of ROWS x CHANNELS neurons through all T steps, so the membrane
potential never leaves its registers. Reductions go through one partial result per program, never through atomics;
they take the tiles from last to first and the other kernels from first to last, so that each finds in the cache what
the one before it, or the convolution, touched at its end.

Time runs in unrolled segments of at most 8 steps. All loads of a segment come before its first store, since a store
might change what a later load reads and the compiler could not move them. The backward pass computes the potentials
again, segment by segment, from the potential before each one: those of a long sequence would not fit into registers.
"""

import triton
import triton.language as tl


@triton.jit
def _offsets(row, column, rows, channels, stride_n, stride_c, PIXELS: tl.constexpr):
    """Where a tile of one step lies: offsets and the mask of what exists, both [ROWS, CHANNELS]."""
    n = (row // PIXELS).to(tl.int64) * stride_n + row % PIXELS
    return n[:, None] + column[None, :] * stride_c, (row < rows)[:, None] & (column < channels)[None, :]


@triton.jit
def _coefficients(weight, bias, mean, var, branch, channel, channels, K: tl.constexpr, EPS: tl.constexpr):
    """tdBN of one branch as x * scale + shift; mean and 1 / sqrt(var + eps) beside it."""
    at = branch * channels + channel
    mask = channel < channels
    mean = tl.load(mean + at, mask, other=0)
    rstd = tl.rsqrt(tl.load(var + at, mask, other=1) + EPS)
    scale = tl.load(weight + at, mask, other=0) * K * rstd
    return scale, tl.load(bias + at, mask, other=0) - mean * scale, mean, rstd


@triton.jit
def _channels_of_tile(column, ROWS: tl.constexpr):
    """The channel of every element [ROWS, CHANNELS] of a tile.

    With it, each thread loads the values of its own channels. One load per channel would be less, but would have to be
    passed on between threads, through barriers.
    """
    return tl.broadcast_to(column[None, :], (ROWS, column.shape[0]))


@triton.jit
def _load_step(x, t, stride_t, at, mask, T: tl.constexpr, SEGMENT: tl.constexpr):
    """The tile at step t; zeros after the end, which the last segment may reach."""
    if T % SEGMENT != 0:
        mask = mask & (t < T)
    return tl.load(x + t * tl.cast(stride_t, tl.int64) + at, mask, other=0)


@triton.jit
def _store_step(x, t, stride_t, at, value, mask, T: tl.constexpr, SEGMENT: tl.constexpr):
    if T % SEGMENT != 0:
        mask = mask & (t < T)
    tl.store(x + t * tl.cast(stride_t, tl.int64) + at, value.to(x.dtype.element_ty), mask)


@triton.jit
def _load_bits(bits, row, column, rows, channels, mask, PER_BYTE: tl.constexpr):
    """The packed spikes of a tile: bit t * PER_BYTE of every element is that of step t (`packing.neurons_per_byte`)."""
    sharing = rows // PER_BYTE
    at = (row % sharing).to(tl.int64)[:, None] * channels + column[None, :]
    return tl.load(bits + at, mask, other=0).to(tl.int32) >> (row // sharing)[:, None]


@triton.jit
def _spike(bits, t, PER_BYTE: tl.constexpr):
    return tl.where((bits >> (t * PER_BYTE)) & 1 != 0, 1.0, 0.0)


@triton.jit
def _learnt_decay(decays, channel, channels, otherwise):
    """The decay of every channel if it is learnt, else a value that is not used."""
    decay = otherwise
    if decays is not None:
        decay = tl.load(decays + channel, channel < channels, other=0)
    return decay


@triton.jit
def _decayed(v, decay, DECAY: tl.constexpr, LEARNT: tl.constexpr):
    """A fixed decay is a compile-time constant. A learnt decay must not be, or every step would compile a kernel."""
    return decay * v if LEARNT else DECAY * v


@triton.jit
def _potential(
    v, a, b, scale1, scale2, shift, decay, BRANCHES: tl.constexpr, DECAY: tl.constexpr, LEARNT: tl.constexpr
):
    """u[t] from the potential v that the step before left and the inputs a, b of the branches."""
    u = _decayed(v, decay, DECAY, LEARNT) + (a.to(v.dtype) * scale1 + shift)
    if BRANCHES == 2:
        u += b.to(v.dtype) * scale2
    return u


@triton.jit
def _after_reset(u, fired, V_TH: tl.constexpr, SOFT: tl.constexpr):
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
def _through_neuron(
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


@triton.jit
def statistics_kernel(
    x, partial, shifts, rows, channels, stride_t, stride_n, stride_c,
    T: tl.constexpr, SEGMENT: tl.constexpr, PIXELS: tl.constexpr, PER_BYTE: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Mean and squared deviations of one program's tiles, about the mean of the first tile: no cancellation.

    If PER_BYTE is not 0, x are packed spikes.
    """
    tiles = tl.cdiv(rows, ROWS)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.arange(0, ROWS)
    at, mask = _offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
    if PER_BYTE > 0:
        first = _spike(_load_bits(x, row, column, rows, channels, mask, PER_BYTE), 0, PER_BYTE)
    else:
        first = tl.load(x + at, mask, other=0)
    shift = tl.sum(first.to(ACC), 0) / tl.minimum(ROWS, rows)
    total = tl.zeros((ROWS, CHANNELS), ACC)
    squares = tl.zeros((ROWS, CHANNELS), ACC)
    for taken in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = (tiles - 1 - taken) * ROWS + tl.arange(0, ROWS)
        at, mask = _offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
        if PER_BYTE > 0:
            bits = _load_bits(x, row, column, rows, channels, mask, PER_BYTE)
        for start in range(0, T, SEGMENT):
            for i in tl.static_range(SEGMENT):
                present = mask if T % SEGMENT == 0 else mask & (start + i < T)
                if PER_BYTE > 0:
                    value = _spike(bits, start + i, PER_BYTE)
                else:
                    value = _load_step(x, start + i, stride_t, at, mask, T, SEGMENT)
                centred = value.to(ACC) - shift
                centred = tl.where(present, centred, 0.0)
                total += centred
                squares += centred * centred
    count = T * _rows_of_program(tl.program_id(0), tl.num_programs(0), rows, ROWS)
    offset = tl.sum(total, 0) / count
    deviations = tl.sum(squares, 0) - tl.sum(total, 0) * offset
    out = partial + tl.program_id(0) * 2 * channels + column
    tl.store(out, offset, column < channels)
    tl.store(out + channels, tl.maximum(deviations, 0.0), column < channels)
    if tl.program_id(0) == 0:
        tl.store(shifts + column, shift, column < channels)


@triton.jit
def _rows_of_program(program, programs, rows, ROWS: tl.constexpr):
    """How many rows the tiles of a program hold; the first program has the last tile, which may be incomplete."""
    tiles = tl.cdiv(rows, ROWS)
    return tl.cdiv(tiles - program, programs) * ROWS - tl.where(program == 0, tiles * ROWS - rows, 0)


@triton.jit
def join_statistics_kernel(
    partial, shifts, mean, var, number, rows, channels, steps, repeats, programs,
    ACC: tl.constexpr, ROWS: tl.constexpr, PROGRAMS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Join the programs' means (relative to the shift) and squared deviations (Chan et al. 1979).

    The number of values counts a static input at all steps that it is repeated.
    """
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    existing = column < channels
    i = tl.arange(0, PROGRAMS)
    mask = (i < programs)[:, None] & existing[None, :]
    at = partial + (i * 2 * channels)[:, None] + column[None, :]
    count = tl.where(i < programs, steps * _rows_of_program(i, programs, rows, ROWS), 0).to(ACC)[:, None]
    offset = tl.load(at, mask, other=0)
    total = tl.sum(count, 0)
    joined = tl.sum(offset * count, 0) / total
    spread = tl.load(at + channels, mask, other=0) + count * (offset - joined[None, :]) * (offset - joined[None, :])
    tl.store(mean + column, tl.load(shifts + column, existing, other=0) + joined, existing)
    tl.store(var + column, tl.sum(tl.where(mask, spread, 0.0), 0) / total, existing)
    tl.store(number + column, tl.zeros((CHANNELS,), ACC) + total * repeats, existing)


@triton.jit
def join_members_kernel(everyone, joined, members, channels, BRANCHES: tl.constexpr, CHANNELS: tl.constexpr):
    """Statistics of all members of a process group as one: `group.joined`, for one branch and a block of channels."""
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    branch = tl.program_id(1)
    existing = column < channels
    size = (2 * BRANCHES + 1) * channels
    means = everyone + branch * channels + column
    variances = means + BRANCHES * channels
    numbers = everyone + 2 * BRANCHES * channels + column
    total = tl.zeros((CHANNELS,), everyone.dtype.element_ty)
    mean = tl.zeros((CHANNELS,), everyone.dtype.element_ty)
    for member in range(members):
        number = tl.load(numbers + member * size, existing, other=1)
        total += number
        mean += number * tl.load(means + member * size, existing, other=0)
    mean /= total
    spread = tl.zeros((CHANNELS,), everyone.dtype.element_ty)
    for member in range(members):
        deviation = tl.load(means + member * size, existing, other=0) - mean
        number = tl.load(numbers + member * size, existing, other=1)
        spread += number * (tl.load(variances + member * size, existing, other=0) + deviation * deviation)
    out = joined + branch * channels + column
    tl.store(out, mean, existing)
    tl.store(out + BRANCHES * channels, spread / total, existing)
    tl.store(joined + 2 * BRANCHES * channels + column, 1 / total, existing)


@triton.jit
def forward_kernel(
    x1, x2, spikes, bits, weight, bias, mean, var, decays, rows, channels, x1_stride_t, x2_stride_t, stride_t, stride_n,
    stride_c, T: tl.constexpr, SEGMENT: tl.constexpr, PIXELS: tl.constexpr, BRANCHES: tl.constexpr,
    PACKED: tl.constexpr, SHARING: tl.constexpr, K: tl.constexpr, EPS: tl.constexpr, DECAY: tl.constexpr,
    LEARNT: tl.constexpr, V_TH: tl.constexpr, SOFT: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """The spikes, and their `bits` if asked for. If PACKED, x2 are packed spikes.

    A program takes the SHARING tiles whose neurons share bytes. If there are several, all steps are one segment.
    """
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    scale1, shift, _, _ = _coefficients(weight, bias, mean, var, 0, column, channels, K, EPS)
    scale2 = scale1
    if BRANCHES == 2:
        scale2, shift2, _, _ = _coefficients(weight, bias, mean, var, 1, column, channels, K, EPS)
        shift += shift2
    decay = _learnt_decay(decays, column, channels, scale1)
    apart = rows // SHARING
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (row < apart)[:, None] & (column < channels)[None, :]
    ats = ()
    for tile in tl.static_range(SHARING):
        at, _ = _offsets(row + tile * apart, column, rows, channels, stride_n, stride_c, PIXELS)
        ats = ats + (at,)
    fired_at = tl.zeros((ROWS, CHANNELS), tl.int32)
    v = tl.zeros((ROWS, CHANNELS), ACC)
    for start in range(0, T, SEGMENT):
        first_inputs = ()
        second_inputs = ()
        if PACKED:
            second_bits = tl.load(x2 + ats[0], mask, other=0).to(tl.int32)
        for tile in tl.static_range(SHARING):
            here = ats[tile]
            for i in tl.static_range(SEGMENT):
                first_inputs = first_inputs + (_load_step(x1, start + i, x1_stride_t, here, mask, T, SEGMENT),)
                if PACKED:
                    second_inputs = second_inputs + (_spike(second_bits >> tile, i, SHARING),)
                elif BRANCHES == 2:
                    second_inputs = second_inputs + (_load_step(x2, start + i, x2_stride_t, here, mask, T, SEGMENT),)
        for tile in tl.static_range(SHARING):
            here = ats[tile]
            if tile > 0:
                v = tl.zeros((ROWS, CHANNELS), ACC)
            for i in tl.static_range(SEGMENT):
                a = first_inputs[tile * SEGMENT + i]
                b = second_inputs[tile * SEGMENT + i] if BRANCHES == 2 else a
                u = _potential(v, a, b, scale1, scale2, shift, decay, BRANCHES, DECAY, LEARNT)
                fired = u > V_TH
                _store_step(spikes, start + i, stride_t, here, tl.where(fired, 1.0, 0.0), mask, T, SEGMENT)
                if bits is not None:
                    fired_at |= tl.where(fired, 1 << (i * SHARING + tile), 0)
                v = _after_reset(u, fired, V_TH, SOFT)
    if bits is not None:
        tl.store(bits + ats[0], fired_at.to(tl.uint8), mask)


@triton.jit
def _per_channel(p, column, channels, otherwise, ACC: tl.constexpr):
    """A value for every channel of the tile where there are some, else the one for all."""
    value = otherwise
    if p is not None:
        value = tl.load(p + column, column < channels, other=0).to(ACC)
    return value


@triton.jit
def integrate_kernel(
    x1, x2, spikes, scale1, scale2, bias, v_th, decays, initials, rows, channels, x1_stride_t, x2_stride_t, stride_t,
    stride_n, stride_c, T: tl.constexpr, SEGMENT: tl.constexpr, PIXELS: tl.constexpr, BRANCHES: tl.constexpr,
    DECAY: tl.constexpr, SOFT: tl.constexpr, ONE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Bare neurons. Potentials are any numbers where ONE is 0.0, else multiples of 1 / ONE."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    at, mask = _offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
    nothing = tl.zeros((CHANNELS,), ACC)
    factor1 = _per_channel(scale1, column, channels, nothing + 1, ACC)
    factor2 = _per_channel(scale2, column, channels, nothing + 1, ACC)
    shift = _per_channel(bias, column, channels, nothing, ACC)
    decay = _per_channel(decays, column, channels, nothing, ACC)
    threshold = _per_channel(v_th, column, channels, nothing, ACC)
    lost = threshold
    if ONE > 0:
        lost = tl.floor(threshold * ONE) / ONE
    v = tl.zeros((ROWS, CHANNELS), ACC) + _per_channel(initials, column, channels, nothing, ACC)
    for start in range(0, T, SEGMENT):
        first_inputs = ()
        second_inputs = ()
        for i in tl.static_range(SEGMENT):
            first_inputs = first_inputs + (_load_step(x1, start + i, x1_stride_t, at, mask, T, SEGMENT),)
            if BRANCHES == 2:
                second_inputs = second_inputs + (_load_step(x2, start + i, x2_stride_t, at, mask, T, SEGMENT),)
        for i in tl.static_range(SEGMENT):
            current = first_inputs[i].to(ACC) * factor1 + shift
            if BRANCHES == 2:
                current += second_inputs[i].to(ACC) * factor2
            v = _decayed(v, decay, DECAY, decays is not None)
            if ONE > 0:
                v = tl.floor(v * ONE) / ONE
            u = v + current
            fired = u > threshold
            _store_step(spikes, start + i, stride_t, at, tl.where(fired, 1.0, 0.0), mask, T, SEGMENT)
            v = tl.where(fired, u - lost, u) if SOFT else tl.where(fired, 0.0, u)


@triton.jit
def backward_kernel(
    grad, x1, x2, out1, out2, starts, weight, bias, mean, var, decays, sums, count, rows, channels,
    grad_stride_t, x1_stride_t, x2_stride_t, out1_stride_t, out2_stride_t, starts_stride, stride_n, stride_c,
    T: tl.constexpr, SEGMENT: tl.constexpr, PIXELS: tl.constexpr, BRANCHES: tl.constexpr, STATIC1: tl.constexpr,
    STATIC2: tl.constexpr, PER_BYTE: tl.constexpr, SUMS: tl.constexpr, ALONE: tl.constexpr, K: tl.constexpr,
    EPS: tl.constexpr, DECAY: tl.constexpr, LEARNT: tl.constexpr, V_TH: tl.constexpr, SOFT: tl.constexpr,
    RESET_GRADIENT: tl.constexpr, SURROGATE: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Backpropagation through time: partial SUMS of a program's tiles into out1, or their input gradients into out1 and
    out2. A program has several tiles, or one ALONE. The count of values behind the moments is 0 where those are
    constants. If PER_BYTE is not 0, x2 are packed spikes.
    """
    tiles = tl.cdiv(rows, ROWS)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    channel = _channels_of_tile(column, ROWS)
    existing = channel < channels
    scale1, shift, mean1, rstd1 = _coefficients(weight, bias, mean, var, 0, channel, channels, K, EPS)
    scale2, mean2, rstd2 = scale1, mean1, rstd1
    if BRANCHES == 2:
        scale2, shift2, mean2, rstd2 = _coefficients(weight, bias, mean, var, 1, channel, channels, K, EPS)
        shift += shift2
    decay = _learnt_decay(decays, channel, channels, scale1)
    if SUMS:
        sum_decay = tl.zeros((ROWS, CHANNELS), ACC)
        sum_du = tl.zeros((ROWS, CHANNELS), ACC)
        sum_du1 = tl.zeros((ROWS, CHANNELS), ACC)
        sum_du2 = tl.zeros((ROWS, CHANNELS), ACC)
    else:
        # dx = scale * du + slope * x + offset
        inverse_count = tl.where(count > 0, 1 / tl.cast(tl.maximum(count, 1), ACC), 0.0)
        sum_du = tl.load(sums + channel, existing, other=0)
        slope1 = -scale1 * rstd1 * (1 / K) * inverse_count * tl.load(sums + channels + channel, existing, other=0)
        offset1 = -scale1 * inverse_count * sum_du - slope1 * mean1
        slope2, offset2 = slope1, offset1
        if BRANCHES == 2:
            slope2 = (
                -scale2 * rstd2 * (1 / K) * inverse_count * tl.load(sums + 2 * channels + channel, existing, other=0)
            )
            offset2 = -scale2 * inverse_count * sum_du - slope2 * mean2
    SEGMENTS: tl.constexpr = (T + SEGMENT - 1) // SEGMENT
    program = tl.program_id(0)
    # A single turn, known as such, is no loop: then the tile is loaded while the coefficients are computed.
    for turn in range(0 if ALONE else program, 1 if ALONE else tiles, 1 if ALONE else tl.num_programs(0)):
        taken = program if ALONE else turn
        row = (tiles - 1 - taken if SUMS else taken) * ROWS + tl.arange(0, ROWS)
        at, mask = _offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
        if PER_BYTE > 0:
            second_bits = _load_bits(x2, row, column, rows, channels, mask, PER_BYTE)
        v = tl.zeros((ROWS, CHANNELS), ACC)
        if SEGMENTS > 1:
            for segment in range(SEGMENTS - 1):
                for i in tl.static_range(SEGMENT):
                    a = _load_step(x1, segment * SEGMENT + i, x1_stride_t, at, mask, T, SEGMENT)
                    b = _load_step(x2, segment * SEGMENT + i, x2_stride_t, at, mask, T, SEGMENT) if BRANCHES == 2 else a
                    u = _potential(v, a, b, scale1, scale2, shift, decay, BRANCHES, DECAY, LEARNT)
                    v = _after_reset(u, u > V_TH, V_TH, SOFT)
                tl.store(starts + segment * tl.cast(starts_stride, tl.int64) + at, v, mask)
        dv = tl.zeros((ROWS, CHANNELS), ACC)  # gradient of the potential that a step leaves
        after = tl.zeros((ROWS, CHANNELS), ACC)  # du of the step after
        total = tl.zeros((ROWS, CHANNELS), ACC)  # of du over all steps
        for backwards in range(SEGMENTS):
            segment = SEGMENTS - 1 - backwards
            if SEGMENTS > 1:
                before = starts + (segment - 1) * tl.cast(starts_stride, tl.int64) + at
                v = tl.load(before, mask & (segment > 0), other=0)
            us = ()
            first_inputs = ()
            second_inputs = ()
            grads = ()
            for i in tl.static_range(SEGMENT):
                a = _load_step(x1, segment * SEGMENT + i, x1_stride_t, at, mask, T, SEGMENT)
                b = a
                if PER_BYTE > 0:
                    b = _spike(second_bits, i, PER_BYTE)
                elif BRANCHES == 2:
                    b = _load_step(x2, segment * SEGMENT + i, x2_stride_t, at, mask, T, SEGMENT)
                grads = grads + (_load_step(grad, segment * SEGMENT + i, grad_stride_t, at, mask, T, SEGMENT),)
                u = _potential(v, a, b, scale1, scale2, shift, decay, BRANCHES, DECAY, LEARNT)
                v = _after_reset(u, u > V_TH, V_TH, SOFT)
                us = us + (u,)
                first_inputs = first_inputs + (a,)
                second_inputs = second_inputs + (b,)
            for i in tl.static_range(SEGMENT - 1, -1, -1):
                u = us[i]
                a = first_inputs[i].to(ACC)
                b = second_inputs[i].to(ACC)
                if SUMS and LEARNT:
                    sum_decay += after * _after_reset(u, u > V_TH, V_TH, SOFT)
                du = _through_neuron(grads[i], dv, u, SURROGATE, WIDTH, V_TH, SOFT, RESET_GRADIENT)
                dv = _decayed(du, decay, DECAY, LEARNT)
                if SUMS and LEARNT:
                    after = du
                total += du
                if SUMS:
                    sum_du1 += du * (a - mean1)
                    if BRANCHES == 2:
                        sum_du2 += du * (b - mean2)
                else:
                    if not STATIC1:
                        dx = scale1 * du + (slope1 * a + offset1)
                        _store_step(out1, segment * SEGMENT + i, out1_stride_t, at, dx, mask, T, SEGMENT)
                    if BRANCHES == 2 and not STATIC2:
                        dx = scale2 * du + (slope2 * b + offset2)
                        _store_step(out2, segment * SEGMENT + i, out2_stride_t, at, dx, mask, T, SEGMENT)
        if SUMS:
            sum_du += total
        else:
            if STATIC1:
                dx = scale1 * (total / T) + (slope1 * tl.load(x1 + at, mask, other=0).to(ACC) + offset1)
                tl.store(out1 + at, dx.to(out1.dtype.element_ty), mask)
            if BRANCHES == 2 and STATIC2:
                dx = scale2 * (total / T) + (slope2 * tl.load(x2 + at, mask, other=0).to(ACC) + offset2)
                tl.store(out2 + at, dx.to(out2.dtype.element_ty), mask)
    if SUMS:
        existing = column < channels
        out = out1 + tl.program_id(0) * (1 + BRANCHES + LEARNT) * channels + column
        tl.store(out, tl.sum(sum_du, 0), existing)
        tl.store(out + channels, tl.sum(sum_du1, 0), existing)
        if BRANCHES == 2:
            tl.store(out + 2 * channels, tl.sum(sum_du2, 0), existing)
        if LEARNT:
            tl.store(out + (1 + BRANCHES) * channels, tl.sum(sum_decay, 0), existing)


@triton.jit
def join_sums_kernel(
    partial, sums, var, channels, programs, BRANCHES: tl.constexpr, LEARNT: tl.constexpr, K: tl.constexpr,
    EPS: tl.constexpr, PROGRAMS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradient of the bias (first row of the second grid dimension), of a branch's weight, or of the decay."""
    which = tl.program_id(1)
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    existing = column < channels
    i = tl.arange(0, PROGRAMS)
    at = partial + ((i * tl.num_programs(1) + which) * channels)[:, None] + column[None, :]
    total = tl.sum(tl.load(at, (i < programs)[:, None] & existing[None, :], other=0), 0)
    of_weight = which > 0
    if LEARNT:
        of_weight = of_weight & (which <= BRANCHES)
    if of_weight:
        total *= K / tl.sqrt(tl.load(var + (which - 1) * channels + column, existing, other=1) + EPS)
    tl.store(sums + which * channels + column, total, existing)


@triton.jit
def pack_kernel(spikes, bits, count, words, BLOCK: tl.constexpr):
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    packed = tl.zeros((BLOCK,), tl.int32)
    for j in tl.static_range(8):
        at = j * tl.cast(words, tl.int64) + word
        spike = tl.load(spikes + at, (word < words) & (at < count), other=0)
        packed |= (spike != 0).to(tl.int32) << j
    tl.store(bits + word, packed.to(tl.uint8), word < words)


@triton.jit
def unpack_kernel(bits, spikes, count, words, BLOCK: tl.constexpr):
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    packed = tl.load(bits + word, word < words, other=0).to(tl.int32)
    for j in tl.static_range(8):
        at = j * tl.cast(words, tl.int64) + word
        spike = ((packed >> j) & 1).to(tl.float32).to(spikes.dtype.element_ty)
        tl.store(spikes + at, spike, (word < words) & (at < count))
