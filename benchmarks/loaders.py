"""Compare our loader of image files with torch's DataLoader, with the very same decoder, and with torchvision's.

    python -m benchmarks.loaders

The files are synthetic but have the usual size: the content of a picture does not change the speed. Every loader has
one worker per core, and makes batches of pixels [N, 3, H, W], randomly cropped and on the device. Measured are the time
to the first batch, and then, once all workers have started and all files were read: images per second, processor time
per image, which hardly depends on the number of cores, and the memory of all workers. Torch's workers are measured in
four ways: forked, as they are by default before Python 3.14, or started by a fork server, as ever since; and each with
freed memory kept for the next image (`train.heap`), which can save most of their page faults.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
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
from rheobase.data import load, workers
from rheobase.data.augment import COLUMNS
from rheobase.data.dataset import PREFETCH, prefetch
from rheobase.data.decoding import Request, decode, pixels_of
from rheobase.data.files import Files
from rheobase.train.heap import keep_freed_memory
from rheobase.train.record import write_result

Epoch = Callable[[], Iterable[Tensor]]
Start = Callable[[ExitStack], Epoch]
"""Starts a loader. The stack ends workers that do not end by themselves: even idle ones share memory with others."""

TICKS = os.sysconf("SC_CLK_TCK")


def keep_memory(worker: int) -> None:
    """Make a process of torch's loader keep freed memory."""
    keep_freed_memory()


class Decoded(TorchDataset[Tensor]):
    """The pixels [H, W, 3] of an image, indexed by requests."""

    def __getitem__(self, request: Request) -> Tensor:
        pixels = bytearray(pixels_of(request, decode))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(request.size, request.size, 3)


def our_epoch(files: Files, own: workers.Workers, batch: int, device: torch.device) -> Epoch:
    """Return an epoch of our loader, which decodes with these workers."""
    files = replace(files, workers=own)

    def epoch() -> Iterator[Tensor]:
        order, u = torch.randperm(len(files)).split(batch), torch.rand(len(files), COLUMNS).split(batch)
        pinned = device.type == "cuda"
        begun = (files.begin(*part, pinned=pinned) for part in zip(order, u, strict=True))
        for images in prefetch(begun, PREFETCH):
            yield images().to(device, non_blocking=True)

    return epoch


def torchs_epoch(files: Files, batch: int, device: torch.device, *, method: str, keeping: bool) -> Epoch:
    """Return an epoch of torch's DataLoader with our decoder.

    Its workers are started by this `method` of `multiprocessing`, and keep freed memory if `keeping`.
    """
    order, u = torch.randperm(len(files)).tolist(), torch.rand(len(files), 4).tolist()
    requests = [files._request(files.paths[i], part) for i, part in zip(order, u, strict=True)]
    batches = [requests[i : i + batch] for i in range(0, len(requests), batch)]
    begin = keep_memory if keeping else None
    loader = _loader(Decoded(), device, batch_sampler=batches, multiprocessing_context=method, worker_init_fn=begin)
    return lambda: (pixels.to(device, non_blocking=True).movedim(3, 1) for pixels in loader)


def torchvisions_epoch(folder: Path, size: int, batch: int, device: torch.device) -> Epoch:
    """Return an epoch as torchvision's examples make it."""
    from torchvision import datasets, transforms

    steps = transforms.Compose([transforms.RandomResizedCrop(size), transforms.PILToTensor()])
    images = datasets.ImageFolder(str(folder / "train"), steps)
    loader = _loader(images, device, batch_size=batch, shuffle=True)
    return lambda: (x.to(device, non_blocking=True) for x, _ in loader)


def _loader(images: Any, device: torch.device, **options: Any) -> "DataLoader[Any]":
    pinned = device.type == "cuda"
    return DataLoader(images, num_workers=CORES, pin_memory=pinned, persistent_workers=True, **options)


def loaders(folder: Path, size: int, batch: int, device: torch.device) -> dict[str, Start]:
    """Return functions that start a loader of these files, by its name."""
    files = load("imagenet", folder, size=size).train
    assert isinstance(files, Files)

    def our_processes(ending: ExitStack) -> Epoch:
        return our_epoch(files, ending.enter_context(closing(workers.Processes(CORES, decode))), batch, device)

    def torchs(method: str, *, keeping: bool) -> Start:
        return lambda ending: torchs_epoch(files, batch, device, method=method, keeping=keeping)

    found: dict[str, Start] = {
        "ours, processes": our_processes,
        "ours, threads": lambda ending: our_epoch(files, workers.Threads(decode), batch, device),
    }
    for method in ("fork", "forkserver"):
        found[f"DataLoader, {method}"] = torchs(method, keeping=False)
        found[f"DataLoader, {method}, keeping freed memory"] = torchs(method, keeping=True)
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError) as error:  # not installed, or made for another torch
        print(f"torchvision left out: {error}")
    else:
        found["torchvision"] = lambda ending: torchvisions_epoch(folder, size, batch, device)
    return found


def loading(start_loader: Start, device: torch.device, least: int) -> dict[str, float]:
    """Measure the seconds until the first batch, including the start of the workers; then epochs after the first."""
    with ExitStack() as ending:
        others = set(_descendants())  # workers of the loader before may end meanwhile
        start = time.perf_counter()
        epoch, first = start_loader(ending), 0.0
        for _ in epoch():
            first = first or time.perf_counter() - start
        _wait(device)
        own_workers = set(_descendants()) - others
        start, own, theirs, seen = time.perf_counter(), _own_seconds(), _processor_seconds(own_workers), 0
        while seen < least:
            seen += sum(len(images) for images in epoch())
        _wait(device)
        seconds, own = time.perf_counter() - start, _own_seconds() - own
        theirs = _processor_seconds(own_workers) - theirs
        memory = sum(map(_memory, own_workers))
    return {
        "seconds_to_first_batch": first,
        "images_per_second": seen / seconds,
        "processor_ms_per_image": 1e3 * (own + theirs) / seen,
        "of_the_main_process": 1e3 * own / seen,
        "memory_of_workers_mib": memory / 2**20,
    }


def _descendants(process: int | None = None) -> Iterator[int]:
    """Yield the processes that this one started, and those that they started."""
    for task in Path(f"/proc/{process or os.getpid()}/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _own_seconds() -> float:
    """Return the processor time that this process has used."""
    return sum(os.times()[:2])


def _processor_seconds(processes: set[int]) -> float:
    """Return the processor time that these processes have used."""
    seconds = 0.0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / TICKS
    return seconds


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
    parser.add_argument("--images", type=int, default=4096, help="images to time for each loader and round")
    parser.add_argument("--rounds", type=int, default=3, help="every loader runs once per round; medians are written")
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
        starts = loaders(folder, arguments.size, arguments.batch, device)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in starts}
        for number in range(1, arguments.rounds + 1):
            for name, start_loader in starts.items():
                rounds[name].append(loading(start_loader, device, arguments.images))
                print(f"{name}: {rounds[name][-1]}", flush=True)
            medians = {name: {key: median(r[key] for r in own) for key in own[0]} for name, own in rounds.items()}
            write_result(out, content | {"loaders": medians}, to_come=arguments.rounds - number, device=device)


if __name__ == "__main__":
    main()
