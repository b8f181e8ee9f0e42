"""Decode, crop and resize image files; and the loop of a worker process that does nothing else.

This module imports little, so a worker starts in a twentieth of a second, without torch or CUDA.
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

__all__ = ["Request", "decode", "pixels_of"]

# Pillow may try only these formats, whatever the name of the file: PostScript would run another program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PIXEL, WIDE = 8, 16  # bytes of memory per pixel, decoded and converted; wide pixels are also scaled
MESSAGE = 2**16  # bytes, more than the longest paths of a message need
ORIENTATION = 0x0112  # the EXIF tag that says how a camera was held
UPRIGHT = {  # what undoes it
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Request(NamedTuple):
    """An image to decode: a random `part` (y, x, area, aspect: 0 to 1), or the centre of the image.

    The centre is a square, `margin` times smaller than the shorter side. The image is the whole file at `path`, or a
    `span` of it: offset and number of bytes.
    """

    path: str
    size: int
    margin: float
    part: list[float] | None
    span: tuple[int, int] | None = None

    def content(self) -> bytes:
        """Read the encoded image."""
        with open_plain(self.path) as file:
            if self.span is None:
                return file.read()
            offset, size = self.span
            file.seek(offset)
            return file.read(size)


Decoder = Callable[[Request], bytes]


def decode(request: Request) -> bytes:
    """Return the pixels [size, size, 3] of the image."""
    size, margin, part = request.size, request.margin, request.part

    def box(width: int, height: int) -> Box:
        return centre(width, height, margin) if part is None else random_part(width, height, *part)

    images, content = pillow(), request.content()
    try:
        opened = images.open(BytesIO(content), formats=FORMATS)
    except images.UnidentifiedImageError:
        raise ValueError(f"its format is none of {', '.join(FORMATS)}") from None
    with opened as image:
        needed = image.width * image.height * (WIDE if image.mode[0] in "FI" else PIXEL)
        limits.check(needed, len(content), f"its {image.width} x {image.height} pixels")
        left, top, right, bottom = box(*image.size)
        scale = size / min(right - left, bottom - top)
        # a large JPEG is decoded at a lower resolution, if that leaves enough pixels
        image.draft("RGB", (ceil(image.width * scale), ceil(image.height * scale)))
        picture = _of_8_bits(image).convert("RGB")
        turn = UPRIGHT.get(_orientation(image))
    square = picture.resize((size, size), images.Resampling.BILINEAR, box=box(*picture.size))
    # Turned last, when there is least to turn: a centre stays the centre, and a random part is as random.
    return (square if turn is None else square.transpose(images.Transpose[turn])).tobytes()


def _orientation(image: Any) -> Any:
    """Return the orientation of a decoded image. Pillow itself turns TIFF files, and then no longer names theirs."""
    try:
        return image.getexif().get(ORIENTATION)
    except Exception:  # a damaged remark on a sound picture; Pillow fails in many ways
        return None


def _of_8_bits(image: Any) -> Any:
    """Scale 16-bit grey and floats from 0 to 1 to 8 bits: a plain conversion would clip them."""
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
    """Decode a request and check the size of the result."""
    pixels = decoder(request)
    if len(pixels) != 3 * request.size**2:
        raise ValueError(f"its decoder returned {len(pixels)} bytes, expected {request.size} x {request.size} x 3")
    return pixels


def centre(width: int, height: int, margin: float) -> Box:
    """Return the square in the middle, `margin` times smaller than the shorter side."""
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_part(width: int, height: int, y: float, x: float, area: float, aspect: float) -> Box:
    """Return a box anywhere in the image: 8 % to 100 % of its area, aspect ratio 3/4 to 4/3, cut to fit."""
    pixels = width * height * (0.08 + 0.92 * area)
    ratio = (3 / 4) ** (1 - 2 * aspect)
    w, h = min((pixels * ratio) ** 0.5, width), min((pixels / ratio) ** 0.5, height)
    left, top = x * (width - w), y * (height - h)
    return left, top, left + w, top + h


def pillow() -> ModuleType:
    """Return Pillow, which reads images. If it is missing, the error names the extra."""
    return need("PIL.Image", "reading images")


def serve(descriptor: int, decoder: Decoder = decode) -> None:
    """Answer messages from a socket until the other end is closed.

    A message holds the number of a batch, a row, the requests from that row on, and a file for the pixels of the batch.
    The answer lists the rows that could not be decoded.
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
