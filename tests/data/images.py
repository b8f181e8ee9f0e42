"""Pictures in two shades, for tests."""

from pathlib import Path

import torch

from rheobase.data.feed import generator

SHADES = {"dark": 40, "light": 200}


def write(path: Path, shade: int, width: int = 12, height: int = 9) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = torch.randint(-9, 10, (height, width, 3), generator=generator(shade, width))
    Image.fromarray((noise + shade).to(torch.uint8).numpy()).save(path)
