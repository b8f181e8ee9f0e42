"""An image in a terminal: shades of grey as characters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHADES = " .:-=+*#%@"
ROWS, COLUMNS = 16, 32  # characters are about twice as high as wide


def shaded(image: "Tensor") -> str:
    """Shades of grey for values [H, W], as characters."""
    from torch.nn.functional import adaptive_avg_pool2d

    small = adaptive_avg_pool2d(image[None], (ROWS, COLUMNS))[0]
    small = (small - small.min()) / (small.max() - small.min()).clamp(min=1e-9)
    levels = (small * (len(SHADES) - 1)).round().long().tolist()
    return "\n".join("".join(SHADES[v] for v in row).rstrip() for row in levels)
