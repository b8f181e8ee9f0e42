"""3x3 convolutions on a CPU with fewer multiplications: Winograd's method, after Lavin and Gray (2016).

Overlapping tiles d of (m + 2) x (m + 2) inputs give tiles of m x m outputs: y = A' [(G w G') * (B' d B)] A. Here *
multiplies element by element, so the sum over channels is one matrix product for each of the (m + 2)^2 elements. This
takes 2.25 times fewer multiplications for m = 2, and 4 times fewer for m = 4. The rows of A', B' and G belong to points
at which polynomials are evaluated (Cook and Toom). Larger tiles have larger rounding errors. In training, spikes are
computed with m = 2, which rounds less than torch's convolution, and gradients with m = 4, which rounds about as much as
torch's gradients. B' d B of spikes is exact.

Images are [G, N, H, W, C] here, and transformed tiles [G, m + 2, m + 2, N, H / m, W / m, C]. G is the number of groups
of images, one group per thread (image i is in group i mod G), so that the images of a thread stay in its cache. Torch
gives every thread an equal part of the outermost dimension, so a thread reads what it has written itself. Exchange
between cores without a common cache is slow. If the matrices are too large for this, all threads share them, in one
group.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rheobase.kernels.processor import multiplies_512_bits

_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}  # for each m, besides infinity
_CHANNELS = 128  # at least: with fewer, the additions outweigh the multiplications that are saved
_IMAGES = 16  # at least: with fewer, transforming the weights takes longer than what is saved
_OWN_MATRICES = 16 * 256 * 256  # elements at most, so that every thread can have its own copy in its cache
_CACHED = 512 * 1024  # elements of a thread's transformed tiles, inputs and outputs together
_TILES = 128  # per thread at least, so that a matrix product is worth loading its weights


# Where 512 bits are multiplied at once, the additions take longer than torch's convolution.
WORTHWHILE = not multiplies_512_bits()  # a constant, because torch's compiler could not look into a file


class Window(NamedTuple):
    """How a convolution moves over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int


def applies(x: Tensor, weight: Tensor, window: Window, *, images: int = _IMAGES) -> bool:
    """Return whether `convolve` can compute this convolution of x [N, C, H, W] faster, with at least so many `images`.

    Float64 is left to torch, because it is there to be exact.
    """
    n, channels, height, width = x.shape
    return (
        n >= images
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and weight.shape[1:] == (channels, 3, 3)
        and all(tuple(size) == (1, 1) for size in (window.stride, window.padding, window.dilation))
        and window.groups == 1
        and min(channels, len(weight)) >= _CHANNELS
        and min(height, width) >= 8
        and height % 2 == width % 2 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and WORTHWHILE
    )


def tile(x: Tensor) -> int:
    """Return the largest m for images x [N, C, H, W] with even H and W."""
    return 4 if x.shape[2] % 4 == x.shape[3] % 4 == 0 else 2


@torch.library.custom_op("rheobase::winograd", mutates_args=())
def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `torch.conv2d(x, weight, padding=1)` of x [N, C, H, W] with even H and W."""
    return convolve_transformed(x, transformed(weight))


def convolve_transformed(x: Tensor, matrices: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute the same with weights from `transformed`, and a bias. H and W must be multiples of their m."""
    return _convolve(x, matrices.mT, bias)


def transformed(weight: Tensor, m: int = 2, *, turned: bool = False) -> Tensor:
    """Return G w G' for every group: [G, (m + 2)^2, outputs, inputs]. If `turned`, rotate the weight by 180 degrees."""
    factors = _factors(weight, m)
    if turned:
        factors = factors.flip(2)
    return (factors @ weight.permute(2, 3, 0, 1).reshape(9, -1)).unflatten(2, weight.shape[:2])


@torch.library.custom_op("rheobase::winograd_gradients", mutates_args=())
def gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight."""
    m = tile(x)
    factors = _factors(weight, m)
    sums = x.new_zeros(*factors.shape[:2], *weight.shape[:2])
    for images, grads, top, room in _chunks(_channels_last(x), _channels_last(grad), sums):
        own = sums[: len(images)].flatten(0, 1)
        own.baddbmm_(room.transformed_gradients(grads).mT, room.transformed(images, top))
    grad_weight = torch.empty_like(weight)
    totals = factors.flatten(0, 1).T @ sums.flatten(0, 1).flatten(1)
    grad_weight.permute(2, 3, 0, 1).copy_(totals.view(3, 3, *weight.shape[:2]))
    return _convolve(grad, transformed(weight, m, turned=True)), grad_weight


@convolve.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _empty_output(x, len(weight)).permute(0, 3, 1, 2)


@gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.channels_last), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return gradients(grad, *ctx.saved_tensors)


convolve.register_autograd(_backward, setup_context=_keep)


def _convolve(x: Tensor, matrices: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _empty_output(x, matrices.shape[3])
    for images, outputs, top, room in _chunks(_channels_last(x), y, matrices):
        weights = matrices[: len(images)].flatten(0, 1)
        torch.bmm(room.transformed(images, top), weights, out=_as_matrices(room.products))
        room.transform_back(outputs)
        if bias is not None:
            outputs += bias
    return y.permute(0, 3, 1, 2)


def _factors(weight: Tensor, m: int) -> Tensor:
    """Return w -> G w G' as a matrix [G, (m + 2)^2, 9]: one for each thread, or one for all of them."""
    g = torch.tensor(_matrices(m)[2], dtype=weight.dtype)
    factors = torch.kron(g, g)
    own = len(factors) * weight.shape[0] * weight.shape[1] <= _OWN_MATRICES
    return factors.expand(torch.get_num_threads() if own else 1, -1, -1)


Rows = list[list[float]]


@cache
def _matrices(m: int) -> tuple[Rows, Rows, Rows]:
    """Return A', B' and G."""
    points = _POINTS[m]
    others = {p: [q for q in points if q != p] for p in points}
    a = [[*(p**i for p in points), float(i == m - 1)] for i in range(m)]
    b = [[*np.poly(others[p])[::-1].tolist(), 0.0] for p in points] + [np.poly(points)[::-1].tolist()]
    g = [[p**i / prod(p - q for q in others[p]) for i in range(3)] for p in points] + [[0.0, 0.0, 1.0]]
    return a, b, g


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _empty_output(x: Tensor, channels: int) -> Tensor:
    n, _, height, width = x.shape
    return x.new_empty(n, height, width, channels)


def _chunks(x: Tensor, y: Tensor, matrices: Tensor) -> Iterator[tuple[Tensor, Tensor, int, "_Room"]]:
    """Yield groups of images of x, bands of y (parts of large images), a band's first row, and room for its tiles."""
    groups, elements = matrices.shape[:2]
    m = isqrt(elements) - 2
    least = _TILES * torch.get_num_threads() // groups
    wanted = max(least, _CACHED // (elements * (x.shape[3] + y.shape[3])))  # tiles of a group
    tall, wide = x.shape[1] // m, x.shape[2] // m
    size = max(1, wanted // (tall * wide))  # images of a group
    band = m * max(rows for rows in range(1, tall + 1) if tall % rows == 0 and (rows * wide <= wanted or rows == 1))
    room = None
    for images, outputs in zip(x.split(groups * size), y.split(groups * size), strict=True):
        shape = (-1, groups) if len(images) % groups == 0 else (-1, 1)
        images, outputs = (i.unflatten(0, shape).transpose(0, 1) for i in (images, outputs))
        if room is None or images.shape[:2] != room.padded.shape[:2]:
            room = _Room(images, outputs, band, m)
        for top in range(0, x.shape[1], band):
            yield images, outputs[:, :, top : top + band], top, room


class _Room:
    """Memory for the tiles of a few images or bands, which the next ones reuse."""

    def __init__(self, images: Tensor, outputs: Tensor, height: int, m: int) -> None:
        groups, n, _, width, channels = images.shape
        self.height, self.m = height, m
        self.a, self.b, _ = _matrices(m)
        side, tall, wide = m + 2, height // m, width // m
        self.padded = images.new_zeros(groups, n, height + 2, width + 2, channels)
        self.tiles = images.new_empty(groups, side, side, n, tall, wide, channels)
        self.products = images.new_empty(groups, side, side, n, tall, wide, outputs.shape[4])
        shapes = [(side, n, tall, width + 2, channels), (side, n, tall, width, outputs.shape[4])]
        between = images.new_empty(groups, max(map(prod, shapes)))  # shared by both
        self.rows, self.output_rows = (between[:, : prod(shape)].unflatten(1, shape) for shape in shapes)

    def transformed(self, images: Tensor, top: int) -> Tensor:
        """Return B' d B of every tile of the band at row `top`: [G (m + 2)^2, tiles, C]."""
        height, width, m = self.height, images.shape[3], self.m
        above, below = max(0, 1 - top), max(0, top + height + 1 - images.shape[2])  # rows that lie outside
        inside = self.padded[:, :, above : height + 2 - below, 1:-1]
        inside.copy_(images[:, :, top - 1 + above : top + height + 1 - below])
        self.padded[:, :, :above] = 0
        self.padded[:, :, height + 2 - below :] = 0
        _multiply(self.b, [self.padded[:, :, i : i + height : m] for i in range(m + 2)], self.rows.unbind(1))
        _multiply(self.b, [self.rows[..., i : i + width : m, :] for i in range(m + 2)], self.tiles.unbind(2))
        return _as_matrices(self.tiles)

    def transform_back(self, outputs: Tensor) -> None:
        """Write A' p A of the products p of every tile."""
        m = self.m
        rows = self.output_rows.view(-1, m, m + 2, *self.products.shape[3:])
        _multiply(self.a, self.products.unbind(1), rows.unbind(1))
        windows = outputs.unflatten(3, (-1, m)).unflatten(2, (-1, m)).movedim(3, 1)  # [G, m, N, H / m, W / m, m, C]
        _multiply(self.a, rows.unbind(2), windows.unbind(5))

    def transformed_gradients(self, grads: Tensor) -> Tensor:
        """Return A g A' of every tile g of m x m gradients: [G (m + 2)^2, tiles, C]."""
        a = list(zip(*self.a, strict=True))
        _multiply(a, grads.unflatten(2, (-1, self.m)).unbind(3), self.output_rows.unbind(1))
        _multiply(a, self.output_rows.unflatten(4, (-1, self.m)).unbind(5), self.products.unbind(2))
        return _as_matrices(self.products)


def _as_matrices(tiles: Tensor) -> Tensor:
    return tiles.flatten(0, 2).flatten(1, 3)


def _multiply(matrix: Iterable[Sequence[float]], vector: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """Multiply a matrix by a vector of tensors."""
    for row, result in zip(matrix, out, strict=True):
        terms = [(factor, x) for factor, x in zip(row, vector, strict=True) if factor]
        (factor, x), *rest = sorted(terms, key=lambda term: term[0] != 1)  # 1 first: it needs no multiplication
        if factor == 1 and rest:
            (factor, other), *rest = rest
            torch.add(x, other, alpha=factor, out=result)
        else:
            torch.mul(x, factor, out=result)
        for factor, x in rest:
            result.add_(x, alpha=factor)
