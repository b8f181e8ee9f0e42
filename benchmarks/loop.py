"""Measure what the training loop adds to the bare step, and how the rest of an epoch is spent, in one process.

python -m benchmarks.loop --data DATA        cifar10_resnet19_t2; writes results/loop-<device>.json
python -m benchmarks.loop --recipe demo      with the embedded digits
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
from rheobase.data.feed import Feed
from rheobase.recipes import Recipe
from rheobase.train import choose_device, fit
from rheobase.train.capture import capture
from rheobase.train.optimizers import make_optimizer
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.record import write_result
from rheobase.train.runs import Run, load_data
from rheobase.train.step import DTYPES, for_device, make_step

WARM, TIMED = 10, 100  # steps


class Clock(Reporter):
    """Records when an epoch ends: evaluated, written and saved."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def epoch(self, row: dict[str, Any]) -> None:
        self.ends.append(process_seconds())


def bare_step(run: Run, feed: Feed, steps: int) -> float:
    """Measure the seconds per optimiser step of the run's untrained network on one fixed batch."""
    recipe, device = for_device(run.recipe, feed.device), feed.device
    network = run.network().to(device, feed.dtype)
    torch.backends.cudnn.benchmark = True
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
    optimizer = make_optimizer(network, recipe, device)
    step = capture(make_step(network, optimizer, scaler, recipe, recipe.timesteps), device)
    images, labels, _ = next(feed.training(0))
    for _ in range(WARM):
        step(images, labels)
    _finish(device)
    started = time.perf_counter()
    for _ in range(steps):
        step(images, labels)
    _finish(device)
    return (time.perf_counter() - started) / steps


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(recipe: Recipe, data: Path | None, device: torch.device, steps: int = TIMED) -> dict[str, Any]:
    """Train the recipe in a temporary folder and compare it with its bare step, without the first epoch."""
    dataset, clock = load_data(recipe, data), Clock()
    feed = Feed(dataset, recipe, device, DTYPES.get(recipe.precision, torch.float32))
    with TemporaryDirectory() as folder:
        probe = Run.create(Path(folder) / "probe", recipe, dataset.info, device)
        before = bare_step(probe, feed, steps)
        out = Path(folder) / "run"
        run = fit(recipe, data=data, out=out, device=str(device), reporter=clock, save_every=0, began=0.0)
        after = bare_step(probe, feed, steps)
        rows = run.rows()
    bare = (before + after) / 2
    images = len(dataset.train)
    epoch = statistics.median(row["seconds"] for row in rows[1:])
    checkpoints = [end - row["elapsed"] for end, row in zip(clock.ends, rows, strict=True)]
    evaluations = [
        row["elapsed"] - end - row["seconds"]
        for end, row in zip(clock.ends, rows[1:], strict=False)
        if "test_loss" in row
    ]
    return {
        "data": dataset.info.fingerprint,
        "batch": recipe.batch_size,
        "timesteps": recipe.timesteps,
        "images": images,
        "bare_step_seconds": {"before": before, "after": after},
        "epoch_seconds": [row["seconds"] for row in rows],
        "overhead_percent": 100 * (epoch / (images / recipe.batch_size * bare) - 1),
        "evaluation_seconds": statistics.median(evaluations),
        "checkpoint_seconds": statistics.median(checkpoints),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", default="cifar10_resnet19_t2")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/loop-<device>.json")
    options = parser.parse_args()
    device = choose_device(options.device)
    recipe = recipes.get(options.recipe).changed([f"epochs={options.epochs}", "evaluate_every=1", "short_epochs=0"])
    found = measure(recipe, options.data, device)
    out = options.out or result_path("loop", device)
    write_result(out, {"recipe": recipe.name, "result": found}, device=device, seed=recipe.seed, data=found.pop("data"))
    bare = found["bare_step_seconds"]
    print(f"bare step {1e3 * bare['before']:.2f} ms before, {1e3 * bare['after']:.2f} ms after")
    print(
        f"epoch {statistics.median(found['epoch_seconds'][1:]):.2f} s: {found['overhead_percent']:+.2f} % over the step"
    )
    print(f"evaluation {found['evaluation_seconds']:.2f} s, checkpoint {found['checkpoint_seconds']:.2f} s")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
