"""Measure training speed and memory of the ImageNet networks in every memory mode, from JPEG files and from memory.

    python -m benchmarks.imagenet

The files are synthetic but have the usual size: the content of a picture does not change the speed. Every point is a
few captured steps of one process, fed as in training; results are written after each point. `benchmarks.loaders` reads
such files without training.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rheobase import recipes, train
from rheobase.data import Dataset, Split, expected, load
from rheobase.data.feed import Feed
from rheobase.recipes import Recipe
from rheobase.train import plan
from rheobase.train.capture import capture
from rheobase.train.optimizers import make_optimizer
from rheobase.train.record import write_result
from rheobase.train.runs import network_for
from rheobase.train.step import Step, make_step

IMAGENET = 1_281_167  # training images
NETWORKS = ("resnet34", "resnet34_large", "resnet50")
WIDTH, HEIGHT, QUALITY = 500, 375, 90
PICTURES = 32  # different ones
CLASSES = 1000
EAGER, WARM_UP = 3, 3  # steps before the capture, and after it
CORES = len(os.sched_getaffinity(0))


def make_files(folder: Path, images: int) -> None:
    """Write `images` JPEG files for training and a few for testing."""
    from PIL import Image

    def encoded(i: int) -> bytes:
        random = np.random.default_rng(i)
        coarse = Image.fromarray(random.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8))
        path = folder / f"picture{i}.jpg"
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(path, quality=QUALITY)
        return path.read_bytes()

    with ThreadPoolExecutor(CORES) as threads:
        contents = list(threads.map(encoded, range(PICTURES)))
        for part, number in (("train", images), ("val", 4)):
            (folder / part / "all").mkdir(parents=True)
            paths = [folder / part / "all" / f"{i}.jpg" for i in range(number)]
            list(threads.map(Path.write_bytes, paths, (contents * -(-number // PICTURES))[:number]))


def labelled(data: Dataset) -> Dataset:
    """Return the files with a thousand classes, as in ImageNet. Which file has which class does not matter."""
    parts = [replace(files, labels=torch.arange(len(files)) % CLASSES) for files in (data.train, data.test)]
    info = replace(data.info, classes=tuple(map(str, range(CLASSES))))
    return replace(data, info=info, train=parts[0], test=parts[1])


def on_the_device(data: Dataset, images: int) -> Dataset:
    """Return the first `images` files, decoded."""
    decoded = data.train.read(torch.arange(images) % len(data.train)).contiguous()
    return replace(data, train=Split(decoded, torch.arange(images) % CLASSES))


def training(recipe: Recipe, feeds: dict[str, Feed], device: torch.device, steps: int) -> Iterator[dict[str, Any]]:
    """Yield images per second for each feed, and the peak memory of a step."""
    data = expected("imagenet", size=recipe.image_size)
    with device:
        network = network_for(recipe, data)
    torch.backends.cudnn.benchmark = True
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(network, recipe, device)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    step = capture(make_step(network, optimizer, scaler, recipe, recipe.timesteps), device)
    warm = feeds["on the device"]
    _speed(step, warm, device, EAGER)
    if device.type == "cuda":  # the search for algorithms is not part of a step
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() - _bytes(network, optimizer) if device.type == "cuda" else 0
    _speed(step, warm, device, WARM_UP)
    facts: dict[str, Any] = {"batch": recipe.batch_size}
    if device.type == "cuda":
        facts["peak_gib"] = (torch.cuda.max_memory_allocated() - held) / 2**30
    for name, feed in feeds.items():
        speed = _speed(step, feed, device, steps)
        hours = IMAGENET / speed / 3600
        times = {"images_per_second": speed, "hours_per_epoch": hours, "hours_per_epoch_on_8_if_they_scale": hours / 8}
        yield {"images": name, **facts, **times}


def _bytes(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the size of weights, gradients, buffers and momentum."""
    tensors = [*network.parameters(), *network.buffers(), *(p.grad for p in network.parameters() if p.grad is not None)]
    momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
    return sum(t.nbytes for t in [*tensors, *momentum])


def _speed(step: Step, feed: Feed, device: torch.device, steps: int) -> float:
    _wait(device)
    start, seen = time.perf_counter(), 0
    for images, labels, _ in islice(feed.training(0), steps):
        step(images, labels)
        seen += len(labels)
    _wait(device)
    return seen / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def points(recipe: Recipe, sources: dict[str, Dataset], device: torch.device, steps: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one memory mode. If it fails, for example for lack of memory, a row says so."""
    feeds = {name: Feed(source, recipe, device, torch.float32) for name, source in sources.items()}
    try:
        yield from training(recipe, feeds, device, steps)
    except RuntimeError as error:
        problem = "out of memory" if "out of memory" in str(error) else str(error).splitlines()[0]
        yield {"batch": recipe.batch_size, "result": problem}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time training on ImageNet-like files.")
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=4096, help="number of JPEG files")
    parser.add_argument("--steps", type=int, default=15, help="steps per point")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--timesteps", type=int, default=6)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no point after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("results/imagenet.json"))
    arguments = parser.parse_args()
    if arguments.images < arguments.batch * max(arguments.steps, EAGER, WARM_UP):
        parser.error("expected at least batch * steps images")
    started, device = time.monotonic(), train.choose_device(arguments.device)
    content: dict[str, Any] = {
        "cores": CORES,
        "settings": {k: v for k, v in vars(arguments).items() if k not in ("out", "device", "limit")},
        "training": [],
    }

    def write(to_come: int) -> None:
        content["seconds"] = round(time.monotonic() - started, 1)
        write_result(arguments.out, content, to_come=to_come, device=device)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, arguments.images)
        data = labelled(load("imagenet", folder, size=arguments.size))
        changes = {key: getattr(arguments, key) for key in ("timesteps", "precision")}
        changes |= {"batch_size": arguments.batch, "image_size": arguments.size}
        chosen = [replace(recipes.get(f"imagenet_{network}"), **changes) for network in arguments.networks]
        wanted = [mode for recipe in chosen for mode in plan.modes(recipe)]
        resident = on_the_device(data, arguments.batch * arguments.steps)
        sources = {"on the device": resident, "JPEG files": data}
        for done, recipe in enumerate(wanted):
            if time.monotonic() - started > arguments.limit:
                print(f"{recipe.network}, {recipe.memory}: no time left", flush=True)
                continue
            for point in points(recipe, sources, device, arguments.steps):
                content["training"].append({"network": recipe.network, "memory": recipe.memory, **point})
                print(f"{time.monotonic() - started:6.1f} s  {content['training'][-1]}", flush=True)
                write(to_come=len(wanted) - done)
            write(to_come=len(wanted) - done - 1)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
