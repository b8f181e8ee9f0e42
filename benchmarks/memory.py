"""Compare the peak memory of real training steps with what `rheobase plan` predicts: python -m benchmarks.memory

Needs a GPU. Writes results/memory-<device>.json. The peak includes weights, optimiser and the captured graph. It does
not include the first steps, in which cuDNN tries algorithms.
"""

import argparse
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.output import result_path
from rheobase.data import expected
from rheobase.recipes import RECIPES, Recipe
from rheobase.train.capture import CapturedStep
from rheobase.train.optimizers import make_optimizer
from rheobase.train.plan import modes, peak_bytes
from rheobase.train.record import write_result
from rheobase.train.runs import network_for
from rheobase.train.step import make_step

# recipe and images per step on one GPU
RUNS = [
    ("cifar10_resnet19_t2", 256),
    ("cifar10_resnet19_t4", 256),
    ("imagenet_resnet34", 24),
    ("dvsgesture_resnet17", 40),
]
_EAGER, _CAPTURED = 4, 3  # steps


def measure(recipe: Recipe, batch: int) -> dict[str, Any]:
    """Measure and predict the peak memory of one recipe."""
    data = expected(recipe.data, size=recipe.image_size, timesteps=recipe.timesteps)
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    network = network_for(recipe, data)
    network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(network, recipe, device)
    scaler = torch.amp.GradScaler("cuda", enabled=recipe.precision == "fp16")
    step = CapturedStep(make_step(network, optimizer, scaler, recipe, recipe.timesteps), eager_calls=_EAGER)
    shape = (recipe.timesteps, batch) if data.timesteps else (batch,)
    images = torch.randn(*shape, *data.shape, device=device)
    labels = torch.randint(len(data.classes), (batch,), device=device)
    for _ in range(_EAGER):
        step(images, labels)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(_CAPTURED):
        step(images, labels)
    torch.cuda.synchronize()
    return {
        "recipe": recipe.name,
        "network": recipe.network,
        "memory": recipe.memory,
        "batch": batch,
        "timesteps": recipe.timesteps,
        "measured_bytes": torch.cuda.max_memory_allocated(),
        "predicted_bytes": peak_bytes(recipe, batch),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the peak memory of real training steps with the prediction.")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/memory-<device>.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    device = torch.device("cuda")
    out = options.out or result_path("memory", device)
    rows = []
    table = Table("recipe", "memory", "measured GiB", "predicted GiB", "error %")
    for done, (name, batch) in enumerate(RUNS, 1):
        for recipe in modes(replace(RECIPES[name](), batch_size=batch, precision="bf16")):
            with get_context("spawn").Pool(1) as pool:  # a new process for each, so that no memory is left over
                row = pool.apply(measure, (recipe, batch))
            rows.append(row)
            measured, predicted = row["measured_bytes"], row["predicted_bytes"]
            table.add_row(
                name,
                recipe.memory,
                f"{measured / 2**30:.2f}",
                f"{predicted / 2**30:.2f}",
                f"{100 * (predicted / measured - 1):+.1f}",
            )
        write_result(out, {"runs": rows}, to_come=len(RUNS) - done, device=device)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
