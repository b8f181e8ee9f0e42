"""A 1x1 convolution as a matrix product that does a neighbour's work too, on trial in `benchmarks.pointwise`."""

import triton
import triton.language as tl


@triton.jit
def product_kernel(
    x, weight, added, out, partial, rows, depth, channels, stride_depth, stride_channel,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out = x @ weight (+ added), and mean and squared deviations of the tile's channels if there is a `partial`.

    x [rows, depth] and out [rows, channels] are contiguous. CHANNELS divides channels, and DEPTH depth.
    """
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, DEPTH)
    mask = (row < rows)[:, None]
    at = row[:, None] * channels + channel[None, :]
    if added is not None:  # requested first, needed last
        residual = tl.load(added + at, mask, other=0)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(0, depth, DEPTH):
        a = tl.load(x + row[:, None] * depth + (start + inner)[None, :], mask, other=0)
        b = tl.load(weight + (start + inner)[:, None] * stride_depth + channel[None, :] * stride_channel)
        total = tl.dot(a, b, total, input_precision="ieee")  # for tests in fp32; bf16 has one way
    if added is not None:
        total += residual.to(tl.float32)
    value = total.to(out.dtype.element_ty)
    tl.store(out + at, value, mask)
    if partial is not None:  # of what is stored, because that is what will be normalised
        stored = value.to(tl.float32)
        mean = tl.sum(stored, 0) / tl.minimum(ROWS, rows - tl.program_id(1) * ROWS)
        deviation = tl.where(mask, stored - mean[None, :], 0.0)
        to = partial + tl.program_id(1) * 2 * channels + channel
        tl.store(to, mean)
        tl.store(to + channels, tl.sum(deviation * deviation, 0))


@triton.jit
def join_kernel(
    partial, moments, rows, channels, programs,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Mean and variance [2, channels] of all rows from those of the programs (Chan et al. 1979)."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    existing = (channel < channels)[None, :]
    total = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, programs, AT_ONCE):
        i = start + tl.arange(0, AT_ONCE)
        count = tl.minimum(ROWS, tl.maximum(rows - i * ROWS, 0)).to(tl.float32)[:, None]
        mask = (i < programs)[:, None] & existing
        total += tl.sum(count * tl.load(partial + i[:, None] * 2 * channels + channel[None, :], mask, other=0), 0)
    mean = total / rows
    spread = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, programs, AT_ONCE):
        i = start + tl.arange(0, AT_ONCE)
        count = tl.minimum(ROWS, tl.maximum(rows - i * ROWS, 0)).to(tl.float32)[:, None]
        mask = (i < programs)[:, None] & existing
        at = partial + i[:, None] * 2 * channels + channel[None, :]
        offset = tl.load(at, mask, other=0) - mean[None, :]
        spread += tl.sum(tl.where(mask, tl.load(at + channels, mask, other=0) + count * offset * offset, 0.0), 0)
    tl.store(moments + channel, mean, channel < channels)
    tl.store(moments + channels + channel, spread / rows, channel < channels)
