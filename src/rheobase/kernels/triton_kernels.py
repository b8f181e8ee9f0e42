"""The fused soma, forward and backward, as Triton kernels for one and two branches; bare neurons; packed spikes.

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

from rheobase.kernels.triton_neurons import (
    after_reset,
    channels_of_tile,
    coefficients,
    decayed,
    learnt_decay,
    load_bits,
    load_step,
    offsets,
    potential,
    spike_of,
    store_step,
    through_neuron,
)


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
    scale1, shift, _, _ = coefficients(weight, bias, mean, var, 0, column, channels, K, EPS)
    scale2 = scale1
    if BRANCHES == 2:
        scale2, shift2, _, _ = coefficients(weight, bias, mean, var, 1, column, channels, K, EPS)
        shift += shift2
    decay = learnt_decay(decays, column, channels, scale1)
    apart = rows // SHARING
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (row < apart)[:, None] & (column < channels)[None, :]
    ats = ()
    for tile in tl.static_range(SHARING):
        at, _ = offsets(row + tile * apart, column, rows, channels, stride_n, stride_c, PIXELS)
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
                first_inputs = first_inputs + (load_step(x1, start + i, x1_stride_t, here, mask, T, SEGMENT),)
                if PACKED:
                    second_inputs = second_inputs + (spike_of(second_bits >> tile, i, SHARING),)
                elif BRANCHES == 2:
                    second_inputs = second_inputs + (load_step(x2, start + i, x2_stride_t, here, mask, T, SEGMENT),)
        for tile in tl.static_range(SHARING):
            here = ats[tile]
            if tile > 0:
                v = tl.zeros((ROWS, CHANNELS), ACC)
            for i in tl.static_range(SEGMENT):
                a = first_inputs[tile * SEGMENT + i]
                b = second_inputs[tile * SEGMENT + i] if BRANCHES == 2 else a
                u = potential(v, a, b, scale1, scale2, shift, decay, BRANCHES, DECAY, LEARNT)
                fired = u > V_TH
                store_step(spikes, start + i, stride_t, here, tl.where(fired, 1.0, 0.0), mask, T, SEGMENT)
                if bits is not None:
                    fired_at |= tl.where(fired, 1 << (i * SHARING + tile), 0)
                v = after_reset(u, fired, V_TH, SOFT)
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
    at, mask = offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
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
            first_inputs = first_inputs + (load_step(x1, start + i, x1_stride_t, at, mask, T, SEGMENT),)
            if BRANCHES == 2:
                second_inputs = second_inputs + (load_step(x2, start + i, x2_stride_t, at, mask, T, SEGMENT),)
        for i in tl.static_range(SEGMENT):
            current = first_inputs[i].to(ACC) * factor1 + shift
            if BRANCHES == 2:
                current += second_inputs[i].to(ACC) * factor2
            v = decayed(v, decay, DECAY, decays is not None)
            if ONE > 0:
                v = tl.floor(v * ONE) / ONE
            u = v + current
            fired = u > threshold
            store_step(spikes, start + i, stride_t, at, tl.where(fired, 1.0, 0.0), mask, T, SEGMENT)
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
    channel = channels_of_tile(column, ROWS)
    existing = channel < channels
    scale1, shift, mean1, rstd1 = coefficients(weight, bias, mean, var, 0, channel, channels, K, EPS)
    scale2, mean2, rstd2 = scale1, mean1, rstd1
    if BRANCHES == 2:
        scale2, shift2, mean2, rstd2 = coefficients(weight, bias, mean, var, 1, channel, channels, K, EPS)
        shift += shift2
    decay = learnt_decay(decays, channel, channels, scale1)
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
        at, mask = offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
        if PER_BYTE > 0:
            second_bits = load_bits(x2, row, column, rows, channels, mask, PER_BYTE)
        v = tl.zeros((ROWS, CHANNELS), ACC)
        if SEGMENTS > 1:
            for segment in range(SEGMENTS - 1):
                for i in tl.static_range(SEGMENT):
                    a = load_step(x1, segment * SEGMENT + i, x1_stride_t, at, mask, T, SEGMENT)
                    b = load_step(x2, segment * SEGMENT + i, x2_stride_t, at, mask, T, SEGMENT) if BRANCHES == 2 else a
                    u = potential(v, a, b, scale1, scale2, shift, decay, BRANCHES, DECAY, LEARNT)
                    v = after_reset(u, u > V_TH, V_TH, SOFT)
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
                a = load_step(x1, segment * SEGMENT + i, x1_stride_t, at, mask, T, SEGMENT)
                b = a
                if PER_BYTE > 0:
                    b = spike_of(second_bits, i, PER_BYTE)
                elif BRANCHES == 2:
                    b = load_step(x2, segment * SEGMENT + i, x2_stride_t, at, mask, T, SEGMENT)
                grads = grads + (load_step(grad, segment * SEGMENT + i, grad_stride_t, at, mask, T, SEGMENT),)
                u = potential(v, a, b, scale1, scale2, shift, decay, BRANCHES, DECAY, LEARNT)
                v = after_reset(u, u > V_TH, V_TH, SOFT)
                us = us + (u,)
                first_inputs = first_inputs + (a,)
                second_inputs = second_inputs + (b,)
            for i in tl.static_range(SEGMENT - 1, -1, -1):
                u = us[i]
                a = first_inputs[i].to(ACC)
                b = second_inputs[i].to(ACC)
                if SUMS and LEARNT:
                    sum_decay += after * after_reset(u, u > V_TH, V_TH, SOFT)
                du = through_neuron(grads[i], dv, u, SURROGATE, WIDTH, V_TH, SOFT, RESET_GRADIENT)
                dv = decayed(du, decay, DECAY, LEARNT)
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
                        store_step(out1, segment * SEGMENT + i, out1_stride_t, at, dx, mask, T, SEGMENT)
                    if BRANCHES == 2 and not STATIC2:
                        dx = scale2 * du + (slope2 * b + offset2)
                        store_step(out2, segment * SEGMENT + i, out2_stride_t, at, dx, mask, T, SEGMENT)
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
