"""A split of image files that are decoded batch by batch."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rheobase.data.archives import Member, Place
from rheobase.data.decoding import Decoder, Request, decode, pillow, pixels_of
from rheobase.data.fingerprint import of_files
from rheobase.data.workers import Workers, choose

SUFFIXES = {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
FOREIGN = {".arw", ".avif", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef"}
"""Pictures too, of phones and cameras, but in formats that are not read."""


@dataclass(frozen=True)
class Files:
    """A split whose images are decoded on demand, to 3 channels of `size` x `size`.

    A test image is cropped to its centre, a square `margin` times smaller than the shorter side. A file that cannot be
    decoded is always replaced by the next one of its class.
    """

    paths: Sequence[Place]
    labels: Tensor
    size: int
    margin: float = 256 / 224
    decode: Decoder = decode
    """Returns the pixels [size, size, 3] of a request. Worker processes find your own by name in a plugin or module."""
    workers: Workers | None = None
    """Threads or processes that decode. By default the number of files decides, on first use."""
    damaged: set[Place] = field(default_factory=set, init=False)
    """Files that were replaced."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return 3, self.size, self.size

    def read(self, index: Tensor, u: Tensor | None = None) -> Tensor:
        """Return random parts of the images, or their centres if there are no random numbers `u`."""
        return self.begin(index, u)()

    def begin(self, index: Tensor, u: Tensor | None = None, *, pinned: bool = False) -> Callable[[], Tensor]:
        """Start decoding. Call the result to wait for the images."""
        if self.decode is decode:
            pillow()  # report here if it is missing
        images = torch.empty(len(index), self.size, self.size, 3, dtype=torch.uint8, pin_memory=pinned)
        wanted = index.tolist()
        parts = [None] * len(index) if u is None else u[:, [0, 1, 8, 9]].tolist()
        requests = [self._request(self.paths[i], part) for i, part in zip(wanted, parts, strict=True)]
        failed = (self.workers or choose(len(self), self.decode)).begin(requests, images.numpy())

        def finish() -> Tensor:
            for row in failed():
                pixels = torch.frombuffer(self._decoded_here(wanted[row], parts[row]), dtype=torch.uint8)
                images[row] = pixels.view(images.shape[1:])
            return images.movedim(3, 1)

        return finish

    def _request(self, place: Place, part: list[float] | None) -> Request:
        if isinstance(place, Member):
            return Request(str(place.archive), self.size, self.margin, part, (place.offset, place.size))
        return Request(str(place), self.size, self.margin, part)

    def _decoded_here(self, i: int, part: list[float] | None) -> bytearray:
        """Decode image `i` in this process, or its replacement. Workers do not report why a file failed."""
        problems: dict[Place, str] = {}
        for path in self._of_the_class_from(i):
            try:
                pixels = pixels_of(self._request(path, part), self.decode)
            except Exception as error:  # damage makes decoders fail in many ways
                if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
                    raise  # the machine failed, not the file
                problems[path] = str(error)
            else:
                self._tell(problems)
                return bytearray(pixels)
        path, problem = next(iter(problems.items()))
        others = f" or {len(problems) - 1} others of its class" if len(problems) > 1 else ""
        raise ValueError(f"cannot read the image {path}{others}: {problem}")

    def _of_the_class_from(self, i: int) -> Iterator[Place]:
        yield self.paths[i]
        others = (self.labels == self.labels[i]).nonzero().flatten().tolist()
        at = others.index(i)
        yield from (self.paths[j] for j in others[at + 1 :] + others[:at])

    def _tell(self, problems: dict[Place, str]) -> None:
        for path, problem in problems.items():
            if path not in self.damaged:
                self.damaged.add(path)
                warnings.warn(
                    f"cannot read the image {path}: {problem}; the next image of its class replaces it "
                    f"(damaged files so far: {len(self.damaged)})",
                    stacklevel=2,
                )

    def to(self, device: torch.device) -> "Files":
        """Return the files themselves, which stay on disk."""
        return self

    def fingerprint(self) -> str:
        """Return a hash of names, labels, and samples of sizes and contents."""
        return of_files(self.paths, self.labels)
