"""Pictures from files, cut out and resized; and what a process runs that does nothing else.

Little is imported: such a process starts in a twentieth of a second and knows nothing of torch or CUDA.
"""

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from math import ceil, isnan
from types import ModuleType
from typing import Any, NamedTuple

from rheobase import limits
from rheobase.extras import need
from rheobase.files import open_plain

# Of Pillow's many formats these alone are tried, whatever a file is called: PostScript would run another program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PIXEL, WIDE = 8, 16  # bytes of memory: as it is decoded, and converted; of wide ones also scaled
MESSAGE = 2**16  # bytes, more than the few longest paths of a message can take

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Request(NamedTuple):
    """`part` of the image (y, x, area, aspect: 0 to 1), or its centre, `margin` times smaller than the shorter side.

    The image is the file at `path`, or in a `span` of it: offset and number of bytes.
    """

    path: str
    size: int
    margin: float
    part: list[float] | None
    span: tuple[int, int] | None = None

    def content(self) -> bytes:
        """The encoded image."""
        with open_plain(self.path) as file:
            if self.span is None:
                return file.read()
            offset, size = self.span
            file.seek(offset)
            return file.read(size)


Decoder = Callable[[Request], bytes]


def decode(request: Request) -> bytes:
    """Pixels [size, size, 3] of the image."""
    size, margin, part = request.size, request.margin, request.part

    def box(width: int, height: int) -> Box:
        return centre(width, height, margin) if part is None else random_part(width, height, *part)

    images, content = pillow(), request.content()
    try:
        opened = images.open(BytesIO(content), formats=FORMATS)
    except images.UnidentifiedImageError:
        raise ValueError(f"its content is none of {', '.join(FORMATS)}") from None
    with opened as image:
        needed = image.width * image.height * (WIDE if image.mode[0] in "FI" else PIXEL)
        limits.check(needed, len(content), f"its {image.width} x {image.height} pixels")
        left, top, right, bottom = box(*image.size)
        scale = size / min(right - left, bottom - top)
        # of a large JPEG fewer pixels are decoded, where enough are left of the part
        image.draft("RGB", (ceil(image.width * scale), ceil(image.height * scale)))
        picture = _of_8_bits(image).convert("RGB")
    return picture.resize((size, size), images.Resampling.BILINEAR, box=box(*picture.size)).tobytes()


def _of_8_bits(image: Any) -> Any:
    """Grey of 16 bits, and floats from 0 to 1, scaled: a plain conversion would clip them."""
    if image.mode.startswith("I"):
        return image.convert("I").point(lambda value: value * (1 / 256))
    if image.mode != "F":
        return image
    low, high = image.getextrema()
    if not 0 <= low <= high <= 1:
        raise ValueError(
            f"its pixels are floats from {low:g} to {high:g}; expected 0 to 1; save it with 8 or 16 bits per pixel"
        )
    if isnan(sum(memoryview(image.tobytes()).cast("f"))):  # extrema leave out what is no number
        raise ValueError("one of its pixels is not a number; save it with 8 or 16 bits per pixel")
    return image.point(lambda value: value * 255 + 0.5)


def pixels_of(request: Request, decoder: Decoder) -> bytes:
    """What the decoder makes of a request, if it is of the size that was asked for."""
    pixels = decoder(request)
    if len(pixels) != 3 * request.size**2:
        raise ValueError(f"its decoder gave {len(pixels)} bytes, expected {request.size} x {request.size} x 3")
    return pixels


def centre(width: int, height: int, margin: float) -> Box:
    """The square in the middle, `margin` times smaller than the shorter side."""
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_part(width: int, height: int, y: float, x: float, area: float, aspect: float) -> Box:
    """8 % to 100 % of the area, 3/4 to 4/3 as wide as high, anywhere; what would not fit is made to."""
    pixels = width * height * (0.08 + 0.92 * area)
    ratio = (3 / 4) ** (1 - 2 * aspect)
    w, h = min((pixels * ratio) ** 0.5, width), min((pixels / ratio) ** 0.5, height)
    left, top = x * (width - w), y * (height - h)
    return left, top, left + w, top + h


def pillow() -> ModuleType:
    """The module that reads images; where it is missing, an error names the extra."""
    return need("PIL.Image", "reading images")


def serve(descriptor: int, decoder: Decoder = decode) -> None:
    """Answer the messages that come through a socket, until nobody is left to send any.

    A message has the number of a batch, a row, the requests from that row on, and a file for the pixels of the batch.
    The answer names the rows that could not be decoded.
    """
    with socket.socket(fileno=descriptor) as channel, suppress(ConnectionError):
        while True:
            message, files, _, _ = socket.recv_fds(channel, MESSAGE, 1)
            if not message:
                return
            batch, first, requests = pickle.loads(message)
            failed = []
            for row, request in enumerate(requests, first):
                try:
                    pixels = pixels_of(Request(*request), decoder)
                except Exception:  # the caller decodes it again and reports the reason
                    failed.append(row)
                else:
                    os.pwrite(files[0], pixels, row * len(pixels))
            os.close(files[0])
            channel.send(pickle.dumps((batch, len(requests), failed)))
