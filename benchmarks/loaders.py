"""Compare our loader of image files with torch's DataLoader as it is usually used, and with torchvision's.

    python -m benchmarks.loaders

The files are synthetic but have the usual size: the content of a picture does not change the speed. Every loader has
one worker per core, and makes batches of pixels [N, 3, H, W], randomly cropped and on the device. Ours, by processes or
by threads, and the plain DataLoader have the very same decoder. Measured are the time to the first batch, and then
images per second; over the whole pass, processor time per image, which hardly depends on the number of cores; and the
memory of all workers.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from benchmarks.imagenet import CORES, make_files
from benchmarks.output import result_path
from rheobase import train
from rheobase.data import load
from rheobase.data.augment import COLUMNS
from rheobase.data.decoding import Request, decode, pixels_of
from rheobase.data.files import Files
from rheobase.train.record import write_result

Start = Callable[[], Iterable[Tensor]]
"""Starts a loader for one pass over the images."""


class Decoded(TorchDataset[Tensor]):
    """The pixels [H, W, 3] of an image, indexed by requests."""

    def __getitem__(self, request: Request) -> Tensor:
        pixels = bytearray(pixels_of(request, decode))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(request.size, request.size, 3)


def loaders(folder: Path, size: int, batch: int, images: int, device: torch.device) -> dict[str, Start]:
    """Return functions that start a loader of this many images, by its name."""
    files = load("imagenet", folder, size=size).train
    assert isinstance(files, Files)
    order = torch.cat([torch.randperm(len(files)) for _ in range(-(-images // len(files)))])[:images].split(batch)
    u = torch.rand(images, COLUMNS).split(batch)
    pinned = device.type == "cuda"

    def ours(processes: int) -> Start:
        own = replace(files, processes=processes)
        return lambda: own.batches(zip(order, u, strict=True), pinned=pinned)

    def plain() -> Iterable[Tensor]:
        requests = [files._requests(*part) for part in zip(order, u, strict=True)]
        loader = DataLoader(
            Decoded(), batch_sampler=requests, num_workers=CORES, pin_memory=pinned, multiprocessing_context="fork"
        )
        return (pixels.movedim(3, 1) for pixels in loader)

    def torchvisions() -> Iterable[Tensor]:
        from torchvision import datasets, transforms

        steps = transforms.Compose([transforms.RandomResizedCrop(size), transforms.PILToTensor()])
        pictures = datasets.ImageFolder(str(folder / "train"), steps)
        indices = [index.tolist() for index in order]
        loader = DataLoader(pictures, batch_sampler=indices, num_workers=CORES, pin_memory=pinned)
        return (pixels for pixels, _ in loader)

    found: dict[str, Start] = {"ours, processes": ours(CORES), "ours, threads": ours(0), "DataLoader": plain}
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError) as error:  # not installed, or made for another torch
        print(f"torchvision left out: {error}")
    else:
        found["torchvision"] = torchvisions
    return found


def loading(start_loader: Start, images: int, device: torch.device) -> dict[str, float]:
    """Measure one pass over this many images, including the start and the end of the workers."""
    others = {*multiprocessing.active_children()}
    own, everything, start = sum(os.times()[:2]), sum(os.times()[:4]), time.perf_counter()
    seen, first, at_first, memory = 0, 0.0, 0, 0
    for batch in start_loader():
        seen += len(batch.to(device, non_blocking=True))
        if not first:
            _wait(device)
            first, at_first = time.perf_counter() - start, seen
        if seen == images:  # the workers are still there
            _wait(device)
            seconds = time.perf_counter() - start
            memory = sum(_memory(process.pid) for process in {*multiprocessing.active_children()} - others)
    return {
        "seconds_to_first_batch": first,
        "images_per_second": (images - at_first) / (seconds - first),
        "processor_ms_per_image": 1e3 * (sum(os.times()[:4]) - everything) / images,
        "of_the_main_process": 1e3 * (sum(os.times()[:2]) - own) / images,
        "memory_of_workers_mib": memory / 2**20,
    }


def _memory(process: int) -> int:
    """Return the bytes of memory that a process uses; what several share is divided among them."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time loaders of ImageNet-like files.")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--files", type=int, default=4096, help="number of JPEG files")
    parser.add_argument("--images", type=int, default=8192, help="images of a pass; every loader makes one per round")
    parser.add_argument("--rounds", type=int, default=3, help="medians are written")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/loaders-<device>.json")
    arguments = parser.parse_args()
    device = train.choose_device(arguments.device)
    out = arguments.out or result_path("loaders", device)
    settings = {key: value for key, value in vars(arguments).items() if key not in ("out", "device")}
    content: dict[str, Any] = {"cores": CORES, "settings": settings}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder, arguments.files)
        starts = loaders(folder, arguments.size, arguments.batch, arguments.images, device)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in starts}
        for number in range(1, arguments.rounds + 1):
            for name, start_loader in starts.items():
                rounds[name].append(loading(start_loader, arguments.images, device))
                print(f"{name}: {rounds[name][-1]}", flush=True)
            medians = {name: {key: median(r[key] for r in own) for key in own[0]} for name, own in rounds.items()}
            write_result(out, content | {"loaders": medians}, to_come=arguments.rounds - number, device=device)


if __name__ == "__main__":
    main()
