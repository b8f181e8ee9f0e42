"""Mean and variance of every channel as Triton kernels: of a program's tiles, of all programs, of a process group.

The tiles are described in `triton_kernels`.
"""

import triton
import triton.language as tl

from rheobase.kernels.triton_neurons import load_bits, load_step, offsets, spike_of


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
    at, mask = offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
    if PER_BYTE > 0:
        first = spike_of(load_bits(x, row, column, rows, channels, mask, PER_BYTE), 0, PER_BYTE)
    else:
        first = tl.load(x + at, mask, other=0)
    shift = tl.sum(first.to(ACC), 0) / tl.minimum(ROWS, rows)
    total = tl.zeros((ROWS, CHANNELS), ACC)
    squares = tl.zeros((ROWS, CHANNELS), ACC)
    for taken in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = (tiles - 1 - taken) * ROWS + tl.arange(0, ROWS)
        at, mask = offsets(row, column, rows, channels, stride_n, stride_c, PIXELS)
        if PER_BYTE > 0:
            bits = load_bits(x, row, column, rows, channels, mask, PER_BYTE)
        for start in range(0, T, SEGMENT):
            for i in tl.static_range(SEGMENT):
                present = mask if T % SEGMENT == 0 else mask & (start + i < T)
                if PER_BYTE > 0:
                    value = spike_of(bits, start + i, PER_BYTE)
                else:
                    value = load_step(x, start + i, stride_t, at, mask, T, SEGMENT)
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
