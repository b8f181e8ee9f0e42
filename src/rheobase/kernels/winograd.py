"""3x3 convolutions on a CPU with 2.25 times fewer multiplications: Winograd's F(2x2, 3x3), after Lavin and Gray (2016).

An overlapping tile d of 4 x 4 inputs gives a tile of 2 x 2 outputs, y = A' [(G w G') * (B' d B)] A, where * multiplies
elements, so that the sum over channels is one matrix product for each of the 16 elements:

    B' = 1  0 -1  0     G =  1    0   0     A' = 1  1  1  0
         0  1  1  0         .5   .5  .5          0  1 -1 -1
         0 -1  1  0         .5  -.5  .5
         0  1  0 -1          0    0   1

B' d B of spikes is exact. Images are [G, N, H, W, C] here, transformed tiles [G, 4, 4, N, H / 2, W / 2, C]: G groups of
a few images, one for each thread (image i is in group i mod G), so that theirs stay in its cache. Torch gives every
thread an equal part of the outermost dimension, so what a thread has written it also reads; cores that share no cache
are slow to exchange. Large matrices leave no room for that: all threads share them, in one group.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

_G = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
_CHANNELS = 128  # at least: with fewer, the additions outweigh the multiplications that are saved
_IMAGES = 16  # at least: with fewer, transforming the weights takes longer than what is saved
_OWN_MATRICES = 256 * 256  # weights at most, for every thread to have the 16 matrices in its cache
_CACHED = 512 * 1024  # elements of a thread's transformed tiles, inputs and outputs together
_TILES = 128  # of a thread at least, so that a matrix product is worth the way of its weights to the core


class Window(Protocol):
    """What a convolution does beside its weight."""

    @property
    def stride(self) -> Any: ...
    @property
    def padding(self) -> Any: ...
    @property
    def dilation(self) -> Any: ...
    @property
    def groups(self) -> int: ...


def applies(x: Tensor, weight: Tensor, window: Window, *, images: int = _IMAGES) -> bool:
    """Whether `convolve` does the same as this convolution of x [N, C, H, W], and faster, from so many images on.

    Float64 is left to torch: it is there to be exact.
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
    )


@torch.library.custom_op("rheobase::winograd", mutates_args=())
def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.conv2d(x, weight, padding=1)` of x [N, C, H, W], H and W even."""
    return convolve_transformed(x, transformed(weight))


def convolve_transformed(x: Tensor, matrices: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same with weights from `transformed`, and a bias."""
    return _convolve(x, matrices.transpose(1, 2), bias)


@torch.library.custom_op("rheobase::winograd_gradients", mutates_args=())
def gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of x and of the weight."""
    factors = _factors(weight)
    sums = x.new_zeros(len(factors), *weight.shape[:2])
    for images, grads, top, room in _chunks(_channels_last(x), _channels_last(grad), len(factors) // 16):
        own = sums[: 16 * len(images)]
        own.baddbmm_(room.transformed_gradients(grads).transpose(1, 2), room.transformed(images, top))
    grad_weight = torch.empty_like(weight)
    grad_weight.permute(2, 3, 0, 1).copy_((factors.T @ sums.flatten(1)).view(3, 3, *weight.shape[:2]))
    return _convolve(grad, transformed(weight, turned=True)), grad_weight


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


def transformed(weight: Tensor, turned: bool = False) -> Tensor:
    """G w G', for every group anew: [16 G, outputs, inputs]; of the weight turned by 180 degrees where asked for."""
    factors = _factors(weight)
    if turned:
        factors = factors.flip(1)
    return (factors @ weight.permute(2, 3, 0, 1).reshape(9, -1)).view(-1, *weight.shape[:2])


def _convolve(x: Tensor, matrices: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _empty_output(x, matrices.shape[2])
    for images, outputs, top, room in _chunks(_channels_last(x), y, len(matrices) // 16):
        torch.bmm(room.transformed(images, top), matrices[: 16 * len(images)], out=_as_matrices(room.products))
        if bias is not None:
            room.products[:, 1, 1] += bias  # which A' m A takes to all four outputs
        room.transform_back(outputs)
    return y.permute(0, 3, 1, 2)


def _factors(weight: Tensor) -> Tensor:
    """w -> G w G' as a matrix [16, 9], for every group anew: one per thread whose cache holds matrices of its own."""
    own = weight.shape[0] * weight.shape[1] <= _OWN_MATRICES
    g = torch.tensor(_G, dtype=weight.dtype)
    return torch.kron(g, g).repeat(torch.get_num_threads() if own else 1, 1)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _empty_output(x: Tensor, channels: int) -> Tensor:
    n, _, height, width = x.shape
    return x.new_empty(n, height, width, channels)


def _chunks(x: Tensor, y: Tensor, groups: int) -> Iterator[tuple[Tensor, Tensor, int, "_Room"]]:
    """Images of x and y in groups, bands of y where they are large, the first row of the band, and room for its tiles."""
    least = _TILES * torch.get_num_threads() // groups
    wanted = max(least, _CACHED // (16 * (x.shape[3] + y.shape[3])))  # tiles of a group
    tall, wide = x.shape[1] // 2, x.shape[2] // 2
    size = max(1, wanted // (tall * wide))  # images of a group
    band = 2 * max(rows for rows in range(1, tall + 1) if tall % rows == 0 and (rows * wide <= wanted or rows == 1))
    room = None
    for images, outputs in zip(x.split(groups * size), y.split(groups * size), strict=True):
        shape = (-1, groups) if len(images) % groups == 0 else (-1, 1)
        images, outputs = (i.unflatten(0, shape).transpose(0, 1) for i in (images, outputs))
        if room is None or images.shape[:2] != room.padded.shape[:2]:
            room = _Room(images, outputs, band)
        for top in range(0, x.shape[1], band):
            yield images, outputs[:, :, top : top + band], top, room


class _Room:
    """Memory for the tiles of a few images, or bands of them, used again by the next."""

    def __init__(self, images: Tensor, outputs: Tensor, height: int) -> None:
        groups, n, _, width, channels = images.shape
        self.height, tall, wide = height, height // 2, width // 2
        self.padded = images.new_zeros(groups, n, height + 2, width + 2, channels)
        self.tiles = images.new_empty(groups, 4, 4, n, tall, wide, channels)
        self.products = images.new_empty(groups, 4, 4, n, tall, wide, outputs.shape[4])
        shapes = [(4, n, tall, width + 2, channels), (4, n, tall, width, outputs.shape[4])]
        between = images.new_empty(groups, max(map(prod, shapes)))  # for the one or the other
        self.rows, self.output_rows = (between[:, : prod(shape)].unflatten(1, shape) for shape in shapes)

    def transformed(self, images: Tensor, top: int) -> Tensor:
        """B' d B of every tile of the band at row `top`: [16 G, tiles, C]."""
        height, width = self.height, images.shape[3]
        above, below = max(0, 1 - top), max(0, top + height + 1 - images.shape[2])  # rows that lie outside
        inside = self.padded[:, :, above : height + 2 - below, 1:-1]
        inside.copy_(images[:, :, top - 1 + above : top + height + 1 - below])
        self.padded[:, :, :above] = 0
        self.padded[:, :, height + 2 - below :] = 0
        _times_b([self.padded[:, :, i : i + height : 2] for i in range(4)], self.rows.unbind(1))
        _times_b([self.rows[..., i : i + width : 2, :] for i in range(4)], self.tiles.unbind(2))
        return _as_matrices(self.tiles)

    def transform_back(self, outputs: Tensor) -> None:
        """A' m A of the products m of every tile."""
        rows = self.output_rows.view(-1, 2, 4, *self.products.shape[3:])
        _times_a(self.products.unbind(1), rows.unbind(1))
        windows = outputs.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).movedim(3, 1)  # [G, 2, N, H / 2, W / 2, 2, C]
        _times_a(rows.unbind(2), windows.unbind(5))

    def transformed_gradients(self, grads: Tensor) -> Tensor:
        """A g A' of every tile g of 2 x 2 gradients: [16 G, tiles, C]."""
        _times_a_transposed(grads.unflatten(2, (-1, 2)).unbind(3), self.output_rows.unbind(1))
        _times_a_transposed(self.output_rows.unflatten(4, (-1, 2)).unbind(5), self.products.unbind(2))
        return _as_matrices(self.products)


def _as_matrices(tiles: Tensor) -> Tensor:
    return tiles.flatten(0, 2).flatten(1, 3)


def _times_b(d: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    torch.sub(d[0], d[2], out=out[0])
    torch.add(d[1], d[2], out=out[1])
    torch.sub(d[2], d[1], out=out[2])
    torch.sub(d[1], d[3], out=out[3])


def _times_a(m: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    torch.add(m[0], m[1], out=out[0]).add_(m[2])
    torch.sub(m[1], m[2], out=out[1]).sub_(m[3])


def _times_a_transposed(g: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    out[0].copy_(g[0])
    torch.add(g[0], g[1], out=out[1])
    torch.sub(g[0], g[1], out=out[2])
    torch.neg(g[1], out=out[3])
