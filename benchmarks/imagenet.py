"""Training speed and memory of the ImageNet networks in every memory mode, on JPEG files and on images on the device.

    python -m benchmarks.imagenet

The files are made up, of the usual size and number of classes: what is in a picture does not change the speed. Both
ways run the real training loop; the second of two epochs counts. Beside it: the loader alone, and torchvision's.
"""

import argparse
import gc
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rheobase import plan, recipes, train
from rheobase.data import load
from rheobase.data.feed import Feed
from rheobase.recipes import Recipe
from rheobase.runs import environment

IMAGENET = 1_281_167  # training images
NETWORKS = ("resnet34", "resnet34_large", "resnet50")
WIDTH, HEIGHT, QUALITY = 500, 375, 90
PICTURES = 32  # that differ


def make_files(folder: Path, classes: int, images: int) -> None:
    """`images` JPEG files for training and one per class for testing."""
    from PIL import Image

    random = np.random.default_rng(0)
    contents = []
    for i in range(PICTURES):
        coarse = Image.fromarray(random.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8))
        path = folder / f"picture{i}.jpg"
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(path, quality=QUALITY)
        contents.append(path.read_bytes())
    for part, number in (("train", images), ("val", classes)):
        for i in range(number):
            path = folder / part / f"class{i % classes:04}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[i % PICTURES])


def training(recipe: Recipe, folder: Path, device: str) -> dict[str, Any]:
    """Images per second of the second epoch and the largest memory."""
    cuda = torch.cuda.is_available() and device != "cpu"
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as out:
        try:
            rows = train.fit(recipe, data=folder, out=Path(out) / "run", device=device).rows()
        except torch.cuda.OutOfMemoryError:
            return {"result": "out of memory"}
    speed = rows[-1]["images_per_second"]
    result = {"images_per_second": speed, "hours_per_epoch": IMAGENET / speed / 3600}
    result["hours_per_epoch_on_8_if_they_scale"] = result["hours_per_epoch"] / 8
    if cuda:
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def loader(folder: Path, size: int, batch: int) -> float:
    """Images per second of our loader, decoded, cut out and on the CPU."""
    recipe = replace(recipes.get("imagenet_resnet34"), image_size=size, batch_size=batch)
    data = load("imagenet", folder, size=size)
    feed = Feed(data, recipe, torch.device("cpu"), torch.float32)
    start, seen = time.perf_counter(), 0
    for images, _, _ in feed.training(0):
        seen += images.shape[0]
    return seen / (time.perf_counter() - start)


def torchvision_loader(folder: Path, size: int, batch: int) -> float | str:
    """Images per second of torchvision's usual pipeline with a process per core."""
    try:
        from torchvision import datasets, transforms
    except (ImportError, RuntimeError) as error:
        return f"cannot run here: {error}"
    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    usual = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    data = datasets.ImageFolder(str(folder / "train"), transforms.Compose([*steps, usual]))
    batches = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=os.cpu_count() or 1)
    start, seen = time.perf_counter(), 0
    for images, _ in batches:
        seen += len(images)
    return seen / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time training and loading of ImageNet-like files.")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=6400)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/imagenet.json"))
    arguments = parser.parse_args()
    device = train.choose_device(arguments.device)
    content: dict[str, Any] = {
        "environment": environment(device),
        "settings": {k: v for k, v in vars(arguments).items() if k != "out"},
        "training": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, arguments.classes, arguments.images)
        content["loader_images_per_second"] = {
            "rheobase": loader(folder, arguments.size, arguments.batch),
            "torchvision": torchvision_loader(folder, arguments.size, arguments.batch),
        }
        print(content["loader_images_per_second"], flush=True)
        for network in arguments.networks:
            base = replace(
                recipes.get(f"imagenet_{network}"),
                epochs=2,
                evaluate_every=2,
                batch_size=arguments.batch,
                image_size=arguments.size,
                precision=arguments.precision,
            )
            for recipe in plan.modes(base):
                for data, where in (("imagenet", "JPEG files"), ("folder", "on the device")):
                    row = {"network": network, "memory": recipe.memory, "images": where}
                    row |= training(replace(recipe, data=data), folder, arguments.device)
                    content["training"].append(row)
                    print(row, flush=True)
                    arguments.out.parent.mkdir(exist_ok=True)
                    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
