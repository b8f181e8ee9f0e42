"""Simulated recordings: the built-in digits, and a substitute for DVS-CIFAR10 made from CIFAR-10 images.

They come from the simulated camera `events.simulate`, and their `DataInfo` says so.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.data.cache import Recordings
from rheobase.data.dataset import Split
from rheobase.data.events import simulate
from rheobase.data.eventset import EventDataset, Option, Slicing, build, sliced
from rheobase.data.expectation import expecting
from rheobase.data.fingerprint import fingerprint
from rheobase.data.sets import cifar, digits, dvscifar10
from rheobase.plugins import dataset

BATCH = 50  # images to simulate at once
SEED = 0


@dataclass(frozen=True)
class Camera:
    """A simulated camera: side of the sensor in pixels, microseconds per recording, largest movement in pixels."""

    side: int
    duration: int
    amplitude: float


@dataset("digits-dvs")
@expecting(classes=digits.CLASSES, channels=2, size=16, timesteps=5, simulated=True, images=1438)
def digits_dvs(path: Path, *, size: int = 0, timesteps: int = 0, **slicing: Option) -> EventDataset:
    """Simulate the 1797 digits at 16 x 16, in 5 slices of 20 ms, with the split of the digits."""
    cut = Slicing(window=20_000, timesteps=5, size=16).changed(size=size, timesteps=timesteps, **slicing)
    source = digits.digits()
    assert isinstance(source.train, Split)
    assert isinstance(source.test, Split)
    images = torch.cat([source.train.images, source.test.images])
    labels = torch.cat([source.train.labels, source.test.labels])
    is_test = [i >= len(source.train) for i in range(len(labels))]
    found = _build("digits-dvs", digits.CLASSES, images, labels, is_test, cut, Camera(16, 100_000, 2.0))
    return replace(found, info=replace(found.info, held_out=digits.HELD_OUT))


@dataset("dvscifar10-simulated")
@expecting(classes=dvscifar10.CLASSES, channels=2, size=42, timesteps=10, simulated=True, images=9000)
def dvscifar10_simulated(
    path: Path, *, size: int = 0, timesteps: int = 0, download: bool = False, **slicing: Option
) -> EventDataset:
    """Simulate the 10 000 test images of CIFAR-10, 1000 per class, sliced and split like DVS-CIFAR10."""
    cut = Slicing(window=5_000, timesteps=10, size=42).changed(size=size, timesteps=timesteps, **slicing)
    source = cifar.cifar10(path, download=download)
    assert isinstance(source.test, Split)
    order = source.test.labels.argsort(stable=True)
    images, labels = source.test.images[order], source.test.labels[order]
    is_test = [test for n in labels.bincount().tolist() for test in dvscifar10.held_out(n, "tenth")]
    classes, camera = source.info.classes, Camera(128, 50_000, 8.0)
    return _build("dvscifar10-simulated", classes, images, labels, is_test, cut, camera)


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
    simulation = {**asdict(camera), "seed": SEED, "source": fingerprint(images)}
    return build(name, classes, labels.tolist(), is_test, slicing, jobs, simulation=simulation)


def _simulated(images: Tensor, seed: tuple[int, int], slicing: Slicing, camera: Camera) -> Recordings:
    grey = images.float().mean(1, keepdim=True)
    pixels = F.interpolate(grey, (camera.side, camera.side), mode="bilinear", align_corners=False)
    recordings = simulate(
        pixels[:, 0].round().to(torch.uint8).numpy(),
        seed=seed,
        duration=camera.duration,
        amplitude=camera.amplitude,
    )
    return sliced(recordings, slicing, [0] * len(images))
