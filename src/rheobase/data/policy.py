"""TrivialAugment (Mueller and Hutter, 2021) for whole batches: one random operation of random strength per image.

It is as accurate as AutoAugment, but needs no searched table. Images are [N, C, H, W] with values from 0 to 255 and one
or three channels. Row n of the uniform numbers u [N, 3] gives operation, strength and sign for image n. Every operation
is computed for the whole batch, and the results are selected afterwards, so nothing waits for the device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
SHEAR, TRANSLATE, ROTATE, ENHANCE, BITS = (
    0.3,
    0.3,
    30.0,
    0.9,
    4,
)  # at full strength; translation as a fraction of the size


def trivial_augment(images: Tensor, u: Tensor) -> Tensor:
    """Apply one random operation of random strength to every image."""
    operation = (u[:, 0] * len(OPERATIONS)).floor()
    strength, signed = u[:, 1], u[:, 1] * torch.where(u[:, 2] < 0.5, -1, 1)
    result = torch.where(_any(operation, *OPERATIONS[1:6]), move(images, operation, signed), images)
    result = torch.where(_any(operation, *OPERATIONS[6:10]), enhance(images, operation, signed), result)
    for name, changed in (
        ("posterize", posterize(images, strength)),
        ("solarize", solarize(images, strength)),
        ("autocontrast", autocontrast(images)),
        ("equalize", equalize(images)),
    ):
        result = torch.where(_any(operation, name), changed, result)
    return result


def move(images: Tensor, operation: Tensor, signed: Tensor) -> Tensor:
    """Shear, translate or rotate about the centre, with the nearest pixel and zeros outside."""

    def only(name: str, full: float) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), signed * full, 0)

    angle = only("rotate", ROTATE).deg2rad()
    rows = [
        torch.stack([angle.cos(), -angle.sin() + only("shear_x", SHEAR), 2 * only("translate_x", TRANSLATE)], 1),
        torch.stack([angle.sin() + only("shear_y", SHEAR), angle.cos(), 2 * only("translate_y", TRANSLATE)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), mode="nearest", align_corners=False)


def enhance(images: Tensor, operation: Tensor, signed: Tensor) -> Tensor:
    """Blend with black, grey, the mean grey or a smoothed copy. Factors above 1 move away from it."""
    gray = images
    if images.shape[1] == 3:
        gray = 0.2989 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    kernel = images.new_ones(3, 3)
    kernel[1, 1].fill_(5)
    smooth = images.clone()  # the border does not change
    channels = images.shape[1]
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(images, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    other = torch.zeros_like(images)
    for name, degenerate in (("color", gray), ("contrast", gray.mean((1, 2, 3), keepdim=True)), ("sharpness", smooth)):
        other = torch.where(_any(operation, name), degenerate, other)
    factor = (1 + ENHANCE * signed).view(-1, 1, 1, 1)
    return (other + factor * (images - other)).clamp(0, 255)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Keep only the upper 8 to 4 bits."""
    quantum = torch.exp2((strength * (BITS + 1)).floor().clamp(max=BITS)).view(-1, 1, 1, 1)
    return (images / quantum).floor() * quantum


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Invert values above a threshold."""
    threshold = (256 * (1 - strength)).view(-1, 1, 1, 1)
    return torch.where(images >= threshold, 255 - images, images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel to the full range."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) * (255 / (high - low).clamp(min=1)), images)


def equalize(images: Tensor) -> Tensor:
    """Spread the histogram of every channel evenly, as Pillow does."""
    values = images.flatten(2).round().long()
    histogram = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(2, values, torch.ones_like(values))
    last = histogram.gather(2, values.amax(2, keepdim=True))
    step = (histogram.sum(2, keepdim=True) - last) // 255
    table = ((histogram.cumsum(2) - histogram + step // 2) // step.clamp(min=1)).clamp(0, 255)
    spread = table.gather(2, values).view_as(images).to(images.dtype)
    return torch.where(step[..., None] > 0, spread, images)


def _any(operation: Tensor, *names: str) -> Tensor:
    """Return where the operation is one of these names, which must be consecutive in `OPERATIONS`."""
    first, last = OPERATIONS.index(names[0]), OPERATIONS.index(names[-1])
    return ((operation >= first) & (operation <= last)).view(-1, 1, 1, 1)
