"""Augmentation of whole batches on their device.

Every function takes images [N, C, H, W] (or sequences [T, N, C, H, W]) and uniform random numbers u [N, columns] in
[0, 1). The result for an image depends only on its own row of u, not on the batch, device or process.
"""

import torch
from torch import Tensor

COLUMNS = 10  # crop 2, flip 1, cutout 2, policy 3, area and aspect of a random part 2; time jitter shares that of area


def crop_flip(images: Tensor, u: Tensor, *, padding: int, flip: bool) -> Tensor:
    """Shift by up to `padding` pixels in both directions, filling with zeros, and mirror half of the images."""
    height, width = images.shape[-2:]
    shift_y, shift_x = ((u[:, i] * (2 * padding + 1)).floor().long() - padding for i in (0, 1))
    y = torch.arange(height, device=u.device) + shift_y[:, None]
    x = torch.arange(width, device=u.device) + shift_x[:, None]
    if flip:
        x = torch.where(u[:, 2:3] < 0.5, x.flip(1), x)
    inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
    n = torch.arange(len(u), device=u.device)[:, None, None]
    moved = images.movedim(-3, -1)[..., n, y.clamp(0, height - 1)[:, :, None], x.clamp(0, width - 1)[:, None, :], :]
    return (moved * inside[..., None]).movedim(-1, -3)


def shift_in_time(sequences: Tensor, u: Tensor, *, steps: int) -> Tensor:
    """Shift sequences [T, N, C, H, W] by up to `steps` timesteps either way, filling with zeros."""
    shift = (u[:, 0] * (2 * steps + 1)).floor().long() - steps
    t = torch.arange(len(sequences), device=u.device)[:, None] + shift
    inside = (t >= 0) & (t < len(sequences))
    n = torch.arange(len(u), device=u.device)
    return sequences[t.clamp(0, len(sequences) - 1), n] * inside[:, :, None, None, None]


def cutout(images: Tensor, u: Tensor, *, size: int) -> Tensor:
    """Set a square of `size` pixels around a random centre to zero (the mean, after normalisation)."""
    height, width = images.shape[-2:]
    top, left = ((u[:, i] * extent).floor() - size // 2 for i, extent in ((0, height), (1, width)))
    y = torch.arange(height, device=u.device) - top[:, None]
    x = torch.arange(width, device=u.device) - left[:, None]
    square = ((y >= 0) & (y < size))[:, :, None] & ((x >= 0) & (x < size))[:, None, :]
    return images.masked_fill(square[:, None], 0)
