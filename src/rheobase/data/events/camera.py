"""A simulated event camera: an image moves a little, and every pixel reports changes in its log intensity."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rheobase.data.events.stream import Events

# Corners (x, y) of the camera's path in units of `amplitude`: a triangle, as in the recordings of N-MNIST.
WAY = np.array([(0.0, 0.0), (0.5, 1.0), (1.0, 0.0), (0.0, 0.0)])
DARK = 0.05  # light on a black pixel, because the logarithm needs some


def simulate(
    images: NDArray[np.uint8],
    *,
    seed: int | Sequence[int],
    duration: int = 100_000,
    steps: int = 24,
    amplitude: float = 3.0,
    threshold: float = 0.25,
    mismatch: float = 0.03,
    noise_rate: float = 1.0,
) -> list[Events]:
    """Simulate recordings of grey images [N, H, W], `duration` microseconds each. The same seed gives the same result.

    The image moves up to `amplitude` pixels along a triangle, in `steps` straight pieces. A pixel fires each time its
    log intensity has changed by `threshold`. Thresholds differ between pixels with standard deviation `mismatch`. Noise
    adds `noise_rate` random events per second and pixel.
    """
    if images.ndim != 3 or 0 in images.shape or threshold <= 0:
        raise ValueError(f"expected images [N, H, W] and a threshold above 0, got {list(images.shape)} and {threshold}")
    random = np.random.default_rng(seed)
    number, height, width = images.shape
    log = np.log(DARK + images.astype(np.float32) / 255)
    own_threshold = np.maximum(random.normal(threshold, mismatch, images.shape), threshold / 4).astype(np.float32)
    reference = log.copy()
    found: list[NDArray[np.int64]] = []  # columns: image, t, x, y, p
    for step in range(1, steps + 1):
        now = _moved(log, *_position(step / steps, amplitude))
        crossings = np.trunc((now - reference) / own_threshold).astype(np.int64)
        reference += crossings * own_threshold
        found.append(_fired(crossings, duration * (step - 1) // steps, duration * step // steps))
    noise = random.poisson(noise_rate * duration * 1e-6 * number * height * width)
    columns = [random.integers(0, bound, noise) for bound in (number, duration, width, height, 2)]
    rows = np.concatenate([*found, np.stack(columns, 1)])
    rows = rows[np.argsort(rows[:, 0] * duration + rows[:, 1], kind="stable")]
    edges = np.searchsorted(rows[:, 0], np.arange(number + 1))
    return [
        Events(
            r[:, 1],
            r[:, 2].astype(np.uint16),
            r[:, 3].astype(np.uint16),
            r[:, 4].astype(np.uint8),
            width,
            height,
        )
        for r in np.split(rows, edges[1:-1])
    ]


def _position(share: float, amplitude: float) -> tuple[float, float]:
    where = share * (len(WAY) - 1)
    corner = min(int(where), len(WAY) - 2)
    x, y = WAY[corner] + (where - corner) * (WAY[corner + 1] - WAY[corner])
    return float(amplitude * x), float(amplitude * y)


def _moved(log: NDArray[np.float32], x: float, y: float) -> NDArray[np.float32]:
    """Return the images seen by a camera at (x, y): interpolated between pixels, with repeated borders."""
    _, height, width = log.shape
    (rows, next_rows, down), (columns, next_columns, right) = _between(y, height), _between(x, width)
    upper, lower = log.take(rows, 1), log.take(next_rows, 1)
    lines = upper + np.float32(down) * (lower - upper)
    left = lines.take(columns, 2)
    return left + np.float32(right) * (lines.take(next_columns, 2) - left)


def _between(shift: float, extent: int) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
    whole = int(shift // 1)
    positions = np.arange(extent) + whole
    return positions.clip(0, extent - 1), (positions + 1).clip(0, extent - 1), shift - whole


def _fired(crossings: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Return the events of one step. The k crossings of a pixel are spread evenly over the step."""
    image, y, x = crossings.nonzero()
    signed = crossings[image, y, x]
    counts = np.abs(signed)
    pixel = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(pixel)) - np.repeat(np.cumsum(counts) - counts, counts)
    t = start + (2 * nth + 1) * (stop - start) // (2 * counts[pixel])
    return np.stack([image[pixel], t, x[pixel], y[pixel], (signed > 0)[pixel]], 1)
