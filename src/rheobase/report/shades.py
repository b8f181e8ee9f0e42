"""Draw images and curves in a terminal, as shades and bars of characters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHADES = " .:-=+*#%@"
BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ROWS, COLUMNS = 16, 32  # characters are about twice as tall as wide


def shaded(image: "Tensor") -> str:
    """Draw values [H, W] as shades of grey."""
    from torch.nn.functional import adaptive_avg_pool2d

    small = adaptive_avg_pool2d(image[None], (ROWS, COLUMNS))[0]
    small = (small - small.min()) / (small.max() - small.min()).clamp(min=1e-9)
    levels = (small * (len(SHADES) - 1)).round().long().tolist()
    return "\n".join("".join(SHADES[v] for v in row).rstrip() for row in levels)


def bars(values: Sequence[float]) -> str:
    """Draw a line of bars. The highest value fills its character."""
    highest = max(values) or 1.0
    return "".join(BARS[-int(-value / highest * (len(BARS) - 1) // 1)] for value in values)
