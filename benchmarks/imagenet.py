"""Measure training speed and memory of the ImageNet networks in every memory mode, from JPEG files and from memory.

    python -m benchmarks.imagenet

The files are synthetic but have the usual size: the content of a picture does not change the speed. Every point is a
few captured steps of one process, fed as in training; results are written after each point. The loaders are measured
first, without training, with one process per core: ours, torch's DataLoader with our decoder, and torchvision's. This
gives the time to start them, and the speed once all have started and all files were read.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from rheobase import recipes, train
from rheobase.data import Dataset, Split, expected, load
from rheobase.data.augment import COLUMNS
from rheobase.data.decoding import Request, decode, pixels_of
from rheobase.data.feed import Feed
from rheobase.data.files import Files
from rheobase.recipes import Recipe
from rheobase.train import plan
from rheobase.train.capture import capture
from rheobase.train.heap import keep_freed_memory
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


def keep_memory(worker: int) -> None:
    """In a process of torch's loader, where every image would otherwise cost hundreds of page faults."""
    keep_freed_memory()


class Decoded(TorchDataset[Tensor]):
    """The pixels [H, W, 3] of an image, indexed by requests."""

    def __getitem__(self, request: Request) -> Tensor:
        pixels = bytearray(pixels_of(request, decode))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(request.size, request.size, 3)


def requests(files: Files, size: int) -> tuple[list[list[Request]], Tensor]:
    """Return requests for random crops of all files in batches of `size`, and the random numbers of augmentation."""
    order, u = torch.randperm(len(files)).tolist(), torch.rand(len(files), COLUMNS)
    parts = u[:, [0, 1, 8, 9]].tolist()
    all_of_them = [files._request(files.paths[i], part) for i, part in zip(order, parts, strict=True)]
    return [all_of_them[i : i + size] for i in range(0, len(all_of_them), size)], u


def _loader(images: Any, device: torch.device, **options: Any) -> "DataLoader[Any]":
    pinned = device.type == "cuda"
    return DataLoader(images, num_workers=CORES, pin_memory=pinned, persistent_workers=True, **options)


def decoding_epoch(files: Files, feed: Feed, device: torch.device) -> Callable[[], Iterable[Tensor]]:
    """Return an epoch of batches as our feed makes them, but decoded by torch's DataLoader."""
    batches, u = requests(files, feed.recipe.batch_size)
    options = {"multiprocessing_context": "forkserver", "worker_init_fn": keep_memory}
    loader = _loader(Decoded(), device, batch_sampler=batches, **options)
    numbers = u.to(device).split(feed.recipe.batch_size)

    def epoch() -> Iterator[Tensor]:
        for pixels, own in zip(loader, numbers, strict=True):
            images = pixels.to(device, non_blocking=True).movedim(3, 1)
            yield feed._augmented(images, own, feed.recipe.timesteps)

    return epoch


def loaders(
    folder: Path, data: Dataset, recipe: Recipe, device: torch.device, least: int = 3000
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and speed of each loader: at least `least` images, cropped, flipped, normalised and on the device."""
    feed = Feed(data, recipe, device, torch.float32)
    yield "rheobase", loading(lambda: (images for images, _, _ in feed.training(0)), device, least)
    yield "DataLoader with our decoder", loading(decoding_epoch(data.train, feed, device), device, least)
    try:
        from torchvision import datasets, transforms
    except (ImportError, RuntimeError) as error:
        yield "torchvision", {"result": f"cannot run here: {type(error).__name__}"}
        return
    steps = [transforms.RandomResizedCrop(recipe.image_size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    usual = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    images = datasets.ImageFolder(str(folder / "train"), transforms.Compose([*steps, usual]))
    theirs = _loader(images, device, batch_size=recipe.batch_size, shuffle=True)
    yield "torchvision", loading(lambda: (x.to(device, non_blocking=True) for x, _ in theirs), device, least)


def loading(epoch: Callable[[], Iterable[Tensor]], device: torch.device, least: int) -> dict[str, Any]:
    """Measure the seconds until the first batch, including the start, and images per second after a whole epoch."""
    start = time.perf_counter()
    first = None
    for _ in epoch():
        first = first or time.perf_counter() - start
    _wait(device)
    start, seen = time.perf_counter(), 0
    while seen < least:
        seen += sum(len(images) for images in epoch())
    _wait(device)
    speed = seen / (time.perf_counter() - start)
    return {"seconds_to_first_batch": first, "images": seen, "images_per_second": speed}


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
    parser = argparse.ArgumentParser(description="Time training and loading of ImageNet-like files.")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, help="empty: only the loaders")
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
        "loaders": {},
        "training": [],
    }

    def write() -> None:
        content["seconds"] = round(time.monotonic() - started, 1)
        write_result(arguments.out, content, device=device)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, arguments.images)
        data = labelled(load("imagenet", folder, size=arguments.size))
        changes = {key: getattr(arguments, key) for key in ("timesteps", "precision")}
        changes |= {"batch_size": arguments.batch, "image_size": arguments.size}
        wanted = [replace(recipes.get(f"imagenet_{network}"), **changes) for network in arguments.networks]
        changes |= {"name": "loaders", "network": "resnet34"}
        for loader, facts in loaders(folder, data, replace(recipes.get("imagenet_resnet34"), **changes), device):
            content["loaders"][loader] = facts
            print(f"{loader}: {facts}", flush=True)
            write()
        resident = on_the_device(data, arguments.batch * arguments.steps)
        sources = {"on the device": resident, "JPEG files": data}
        for base in wanted:
            for recipe in plan.modes(base):
                if time.monotonic() - started > arguments.limit:
                    print(f"{recipe.network}, {recipe.memory}: no time left", flush=True)
                    continue
                for point in points(recipe, sources, device, arguments.steps):
                    content["training"].append({"network": recipe.network, "memory": recipe.memory, **point})
                    print(f"{time.monotonic() - started:6.1f} s  {content['training'][-1]}", flush=True)
                    write()
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
