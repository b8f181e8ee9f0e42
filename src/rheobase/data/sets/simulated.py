"""Simulated recordings: the embedded digits, and a stand-in for DVS-CIFAR10 made from the images of CIFAR-10.

They come from the simulated camera of `events.simulate`, and `data.SIMULATED` lists them.
"""

import hashlib
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.data.cache import Made
from rheobase.data.dataset import Split
from rheobase.data.events import simulate
from rheobase.data.eventset import EventDataset, Slicing, build, made
from rheobase.data.sets import cifar, digits
from rheobase.data.sets.dvscifar10 import held_out

BATCH = 50  # images simulated together
SEED = 0


@dataclass(frozen=True)
class Camera:
    """Side of the sensor in pixels, microseconds of a recording, largest movement in pixels."""

    side: int
    duration: int
    amplitude: float


def load_digits(**options: int | bool) -> EventDataset:
    """The 1797 digits at 16 x 16, 5 slices of 20 ms, split as the digits are."""
    slicing = Slicing(window=20_000, timesteps=5, size=16).changed(**options)
    source = digits.load()
    assert isinstance(source.train, Split)
    assert isinstance(source.test, Split)
    images = torch.cat([source.train.images, source.test.images])
    labels = torch.cat([source.train.labels, source.test.labels])
    is_test = [i >= len(source.train) for i in range(len(labels))]
    return _build("digits-dvs", source.classes, images, labels, is_test, slicing, Camera(16, 100_000, 2.0))


def load_cifar10(root: Path, *, download: bool = False, **options: int | bool) -> EventDataset:
    """The 10 000 test images of CIFAR-10, 1000 of each class, sliced and split as DVS-CIFAR10."""
    slicing = Slicing(window=5_000, timesteps=10, size=42).changed(**options)
    source = cifar.load("cifar10", root, download)
    assert isinstance(source.test, Split)
    order = source.test.labels.argsort(stable=True)
    images, labels = source.test.images[order], source.test.labels[order]
    is_test = [test for n in labels.bincount().tolist() for test in held_out(n, "tenth")]
    return _build("dvscifar10-simulated", source.classes, images, labels, is_test, slicing, Camera(128, 50_000, 8.0))


def _build(
    name: str,
    classes: tuple[str, ...],
    images: Tensor,
    labels: Tensor,
    is_test: list[bool],
    slicing: Slicing,
    camera: Camera,
) -> EventDataset:
    jobs = [partial(_simulated, part, (SEED, i), slicing, camera) for i, part in enumerate(images.split(BATCH))]
    source = hashlib.sha256(images.numpy().tobytes()).hexdigest()
    parameters = {**asdict(camera), "seed": SEED, "source": source}
    return build(name, classes, labels.tolist(), is_test, slicing, jobs, parameters=parameters)


def _simulated(images: Tensor, seed: tuple[int, int], slicing: Slicing, camera: Camera) -> Made:
    grey = images.float().mean(1, keepdim=True)
    pixels = F.interpolate(grey, (camera.side, camera.side), mode="bilinear", align_corners=False)
    recordings = simulate(
        pixels[:, 0].round().to(torch.uint8).numpy(),
        seed=seed,
        duration=camera.duration,
        amplitude=camera.amplitude,
    )
    return made(recordings, slicing, [0] * len(images))
