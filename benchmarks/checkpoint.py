"""Measure how long a checkpoint stops training, and how long it takes to write it.

python -m benchmarks.checkpoint        on a GPU and on the CPU: writes results/checkpoint-<device>.json
python -m benchmarks.checkpoint --device cpu --networks resnet19

The GPU finishes every step before the next starts, so that nothing is hidden. The stall is how much longer the step
with the checkpoint takes than the median step. The drag is the same for all steps until the checkpoint is written.
"""

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.output import result_path
from rheobase import recipes
from rheobase.data import Dataset, Split
from rheobase.data.feed import Feed
from rheobase.recipes import Recipe
from rheobase.train import choose_device
from rheobase.train.distributed import ALONE
from rheobase.train.parts import Parts
from rheobase.train.progress import Reporter
from rheobase.train.record import write_result
from rheobase.train.runs import Run
from rheobase.train.trainer import Trainer

# image size, classes, and images of a batch on a GPU and on a CPU
NETWORKS = {"resnet19": (32, 10, {"cuda": 256, "cpu": 2}), "resnet50": (224, 1000, {"cuda": 32, "cpu": 2})}
WARM, BETWEEN, CHECKPOINTS = 10, 40, 5  # steps to warm up, steps before each checkpoint, checkpoints


def made(network: str, device: torch.device) -> tuple[Recipe, Dataset]:
    """Return a recipe for the network, with bf16 on a GPU, and random images for one batch."""
    size, classes, batch = NETWORKS[network]
    n = batch[device.type]
    precision = "bf16" if device.type == "cuda" else "fp32"
    settings = [f"network={network}", f"batch_size={n}", f"precision={precision}", "timesteps=4", "average=0.999"]
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, 3, size, size), dtype=torch.uint8, generator=random)
    split = Split(images, torch.randint(classes, (n,), generator=random))
    names = tuple(f"class {i}" for i in range(classes))
    return recipes.get("demo").changed(settings), Dataset.of("random", split, split, names)


def measure(network: str, device: torch.device, between: int, checkpoints: int) -> dict[str, Any]:
    """Measure the steps of a trainer, its stops for checkpoints, and the time to write them."""
    recipe, dataset = made(network, device)
    with TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", recipe, dataset.info, device, data=dataset)
        feed = Feed(dataset, recipe, device, torch.float32)
        parts, options = Parts.of(recipe, data=dataset), {"save_every": 0.0, "part_bytes": None}
        trainer = Trainer(run, run.network(), parts, feed, ALONE, Reporter(), 0.0, **options)
        trainer.make_room()
        images, labels, _ = next(feed.training(0))
        step = trainer._make_step(recipe.timesteps)

        def timed(save: bool) -> float:
            started = time.perf_counter()
            step(images, labels)
            trainer.step += 1
            trainer.writer.look()
            if save:
                trainer.save()
            if device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - started

        for _ in range(WARM if device.type == "cuda" else 1):
            timed(False)
        plain: list[float] = []
        found: dict[str, list[float]] = {"stall_seconds": [], "drag_seconds": [], "written_seconds": []}
        for _ in range(checkpoints):
            plain += [timed(False) for _ in range(between)]
            began = time.perf_counter()
            slow = [timed(True)]
            while trainer.writer.busy:
                slow.append(timed(False))
            found["written_seconds"].append(time.perf_counter() - began)
            usual = statistics.median(plain)
            found["stall_seconds"].append(slow[0] - usual)
            found["drag_seconds"].append(sum(slow) - usual * len(slow))
        trainer.writer.wait()
        trainer.writer.close()
        size = sum(file.stat().st_size for file in max(run.checkpoints.iterdir()).iterdir())
    return {"batch": recipe.batch_size, "step_seconds": statistics.median(plain), "checkpoint_bytes": size, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--device", default="auto", help="auto: a GPU, if there is one, and also the CPU")
    parser.add_argument("--checkpoints", type=int, default=CHECKPOINTS)
    parser.add_argument("--between", type=int, help="steps before each checkpoint; by default fewer on a CPU")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/checkpoint-<device>.json")
    options = parser.parse_args()
    first = choose_device(options.device)
    devices = {first.type: first} | ({"cpu": torch.device("cpu")} if options.device == "auto" else {})
    results: dict[str, Any] = {}
    for name, device in devices.items():
        between = options.between or (BETWEEN if name == "cuda" else 3)
        results[name] = {n: measure(n, device, between, options.checkpoints) for n in options.networks}
        for network, found in results[name].items():
            stall, drag, written = (found[f"{what}_seconds"] for what in ("stall", "drag", "written"))
            print(
                f"{name} {network}: {found['checkpoint_bytes'] / 1e6:.0f} MB, "
                f"step {1e3 * found['step_seconds']:.1f} ms, stall {1e3 * statistics.median(stall):.1f} ms "
                f"(first {1e3 * stall[0]:.1f}, largest {1e3 * max(stall):.1f}), "
                f"drag {1e3 * statistics.median(drag):.1f} ms, written in {statistics.median(written):.2f} s"
            )
    out = options.out or result_path("checkpoint", first)
    write_result(out, {"timesteps": 4, "results": results}, device=first, seed=0)
    print(f"written to {out}")


if __name__ == "__main__":
    main()
