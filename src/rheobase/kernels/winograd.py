"""3x3 convolutions on a CPU with 2.25 times fewer multiplications: Winograd's F(2x2, 3x3), after Lavin and Gray (2016).

An overlapping tile d of 4 x 4 inputs gives a tile of 2 x 2 outputs, y = A' [(G w G') * (B' d B)] A, where * multiplies
elements, so that the sum over channels is one matrix product for each of the 16 elements:

    B' = 1  0 -1  0     G =  1    0   0     A' = 1  1  1  0
         0  1  1  0         .5   .5  .5          0  1 -1 -1
         0 -1  1  0         .5  -.5  .5
         0  1  0 -1          0    0   1

B' d B of spikes is exact. Images are [N, H, W, C] here, transformed tiles [4, 4, N, H / 2, W / 2, C]; a few images at a
time, so that theirs stay in the cache.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

_G = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
_CHANNELS = 128  # at least: with fewer, the additions outweigh the multiplications that are saved
_CACHED = 2 * 1024 * 1024  # elements of transformed tiles, inputs and outputs together
_TILES = 256  # at least, so that a matrix product is worth the way of its weights into the cache


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


def applies(x: Tensor, weight: Tensor, window: Window) -> bool:
    """Whether `convolve` does the same as this convolution of x [N, C, H, W], and faster.

    Float64 is left to torch: it is there to be exact.
    """
    _, channels, height, width = x.shape
    return (
        x.device.type == "cpu"
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
    return _convolve(x, weight)


@torch.library.custom_op("rheobase::winograd_gradients", mutates_args=())
def gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of x and of the weight."""
    sums = x.new_zeros(16, weight.shape[1], weight.shape[0])
    for images, grads, room in _chunks(_channels_last(x), _channels_last(grad)):
        sums.baddbmm_(room.transformed(images).transpose(1, 2), room.transformed_gradients(grads))
    grad_weight = torch.empty_like(weight)
    grad_weight.permute(2, 3, 1, 0).copy_((_factors(weight).T @ sums.flatten(1)).view(3, 3, *sums.shape[1:]))
    return _convolve(grad, weight.flip(2, 3).transpose(0, 1)), grad_weight


@convolve.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _empty_output(x, weight).permute(0, 3, 1, 2)


@gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.channels_last), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return gradients(grad, *ctx.saved_tensors)


convolve.register_autograd(_backward, setup_context=_keep)


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    matrices = (_factors(weight) @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(16, *weight.shape[1::-1])
    y = _empty_output(x, weight)
    for images, outputs, room in _chunks(_channels_last(x), y):
        torch.bmm(room.transformed(images), matrices, out=_as_matrices(room.products))
        room.transform_back(outputs)
    return y.permute(0, 3, 1, 2)


def _factors(weight: Tensor) -> Tensor:
    """G w G' as a matrix [16, 9]."""
    g = torch.tensor(_G, dtype=weight.dtype)
    return torch.kron(g, g)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _empty_output(x: Tensor, weight: Tensor) -> Tensor:
    n, _, height, width = x.shape
    return x.new_empty(n, height, width, len(weight))


def _chunks(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor, "_Room"]]:
    tiles = x.shape[1] * x.shape[2] // 4  # of an image
    wanted = max(_TILES, _CACHED // (16 * (x.shape[3] + y.shape[3])))
    size = max(1, wanted // tiles)
    room = None
    for images, outputs in zip(x.split(size), y.split(size), strict=True):
        if room is None or len(images) != len(room.padded):
            room = _Room(images, outputs)
        yield images, outputs, room


class _Room:
    """Memory for the tiles of a few images, used again by the next."""

    def __init__(self, images: Tensor, outputs: Tensor) -> None:
        n, height, width, channels = images.shape
        tall, wide = height // 2, width // 2
        self.padded = images.new_zeros(n, height + 2, width + 2, channels)
        self.rows = images.new_empty(4, n, tall, width + 2, channels)
        self.tiles = images.new_empty(4, 4, n, tall, wide, channels)
        self.products = images.new_empty(4, 4, n, tall, wide, outputs.shape[3])
        self.output_rows = images.new_empty(4, n, tall, width, outputs.shape[3])

    def transformed(self, images: Tensor) -> Tensor:
        """B' d B of every tile: [16, tiles, C]."""
        _, height, width, _ = images.shape
        self.padded[:, 1:-1, 1:-1] = images
        _times_b([self.padded[:, i : i + height : 2] for i in range(4)], self.rows.unbind())
        _times_b([self.rows[..., i : i + width : 2, :] for i in range(4)], self.tiles.unbind(1))
        return _as_matrices(self.tiles)

    def transform_back(self, outputs: Tensor) -> None:
        """A' m A of the products m of every tile."""
        rows = self.output_rows.view(2, 4, *self.products.shape[2:])
        _times_a(self.products.unbind(), rows.unbind())
        windows = outputs.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).movedim(2, 0)  # [2, N, H / 2, W / 2, 2, C]
        _times_a(rows.unbind(1), windows.unbind(4))

    def transformed_gradients(self, grads: Tensor) -> Tensor:
        """A g A' of every tile g of 2 x 2 gradients: [16, tiles, C]."""
        _times_a_transposed(grads.unflatten(1, (-1, 2)).unbind(2), self.output_rows.unbind())
        _times_a_transposed(self.output_rows.unflatten(3, (-1, 2)).unbind(4), self.products.unbind(1))
        return _as_matrices(self.products)


def _as_matrices(tiles: Tensor) -> Tensor:
    return tiles.flatten(0, 1).flatten(1, 3)


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
