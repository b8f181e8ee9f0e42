"""Measure what a process group adds to the captured training step, with a group of one process.

Every collective is issued and counted, but with one process it moves nothing. The time that the collectives take on a
node with several GPUs is computed with the model of `rheobase plan`.

python -m benchmarks.group                                      ResNet-19 and ResNet-50 on a GPU, elsewhere the demo
python -m benchmarks.group --cases cifar10_resnet19_t4:32 --gpus 4
"""

import argparse
import copy
import statistics
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Trial, play_round
from benchmarks.output import result_path
from rheobase import recipes
from rheobase.data import expected
from rheobase.recipes import Recipe
from rheobase.train import choose_device, distributed
from rheobase.train.capture import CapturedStep, Step, capture, release
from rheobase.train.collectives import Collectives
from rheobase.train.optimizers import make_optimizer
from rheobase.train.record import write_result
from rheobase.train.runs import channels_last, network_for
from rheobase.train.scale import Cluster
from rheobase.train.step import make_step

ALONE, JOINED, LOCAL = CONTENDERS = ("alone", "joined", "local")  # no group; a group with joined or local statistics
ON_GPU = ("cifar10_resnet19_t4:256", "cifar10_resnet19_t4:64", "cifar10_resnet19_t4:32", "imagenet_resnet50:32")
ON_CPU = ("demo:16",)
TIMESTEPS = 4
WARM_UP = 5  # steps, including the capture
ROUND = 0.25  # seconds


def case(text: str) -> Recipe:
    """Return the recipe for RECIPE:IMAGES, with the same number of timesteps for all."""
    name, _, images = text.partition(":")
    return recipes.get(name).changed([f"batch_size={images}", f"timesteps={TIMESTEPS}", "short_epochs=0"])


@contextmanager
def group_of_one(device: torch.device) -> Iterator[dist.ProcessGroup]:
    """Yield a process group of this process alone."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    with TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
        dist.destroy_process_group()  # not after an error, as it would wait for the graphs that hold its collectives


def prepare(name: str, recipe: Recipe, device: torch.device, group: dist.ProcessGroup) -> Trial:
    """Return the step of a contender, warmed up and captured. Its facts include the collectives."""
    torch.manual_seed(0)
    data = expected(recipe.data, size=recipe.image_size)
    network = channels_last(network_for(recipe, data)).to(device)
    summed = nullcontext if name == ALONE else distributed.join(network, group, name)
    average = copy.deepcopy(network) if recipe.average else None
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
    optimizer = make_optimizer(network, recipe, device)
    plain = make_step(network, optimizer, scaler, recipe, recipe.timesteps, average, summed=summed)
    images = torch.randn(recipe.batch_size, *data.shape, device=device)
    labels = torch.randint(len(data.classes), (recipe.batch_size,), device=device)
    with Collectives() as seen:
        plain(images, labels, 1.0)
    syncs = host_synchronisations(partial(plain, images, labels, 1.0)) if device.type == "cuda" else None
    step = capture(plain, device)
    run = partial(step, images, labels, 1.0)
    for _ in range(WARM_UP):
        run()
    captured = isinstance(step, CapturedStep) and step.graph is not None
    facts = {"collectives": seen.calls, "host_synchronisations": syncs, "captured": captured, "step": step}
    trial = Trial(run, 1, facts)
    trial.repeats = max(1, round(ROUND / play_round(trial, device.type)["seconds"]))
    return trial


def host_synchronisations(step: Step) -> int:
    """Count how often torch waits for the GPU in a step."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in found)


def measure(
    recipe: Recipe, device: torch.device, group: dist.ProcessGroup, rounds: int, node: Cluster
) -> dict[str, Any]:
    """Measure all contenders of one case in interleaved rounds."""
    trials = {name: prepare(name, recipe, device, group) for name in CONTENDERS}
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    disturbed = 0
    for number in range(rounds):
        for i in range(len(CONTENDERS)):  # another contender starts every round
            name = CONTENDERS[(number + i) % len(CONTENDERS)]
            found = play_round(trials[name], device.type)
            seconds[name].append(found["seconds"])
            disturbed += found["disturbed"]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    results: dict[str, Any] = {}
    for name, trial in trials.items():
        release(trial.facts.pop("step"))
        calls = trial.facts.pop("collectives")
        added = sum((node.gather if call.name == "all_gather" else node.reduce)(call.bytes) for call in calls)
        results[name] = {
            "seconds": medians[name],
            "ratio": medians[name] / medians[ALONE],
            "collectives": len(calls),
            "bytes": sum(call.bytes for call in calls),
            "seconds_of_collectives_on_node": added,
            "ratio_on_node": (medians[name] + added) / medians[ALONE],
            **trial.facts,
            "rounds": seconds[name],
        }
    setting = {"recipe": recipe.name, "network": recipe.network, "timesteps": recipe.timesteps}
    setting |= {"batch": recipe.batch_size, "precision": recipe.precision}
    return {"setting": setting, "disturbed_rounds": disturbed, "results": results}


def table(runs: list[dict[str, Any]], node: Cluster) -> Table:
    """Return a row for every case and contender."""
    columns = ["network", "N", "contender", "ms", "ratio", "collectives", "MB", "syncs"]
    found = Table(
        title=f"The step of a group of one, T = {TIMESTEPS}",
        caption=f"on {node.gpus} GPUs: including the time of collectives there, by the model of rheobase plan",
    )
    for column in (*columns, f"us on {node.gpus} GPUs", f"ratio on {node.gpus} GPUs"):
        found.add_column(column, justify="left" if column in ("network", "contender") else "right")
    for run in runs:
        for name, r in run["results"].items():
            found.add_row(
                run["setting"]["network"], str(run["setting"]["batch"]), name + ("" if r["captured"] else " (eager)"),
                f"{1e3 * r['seconds']:.3f}", f"{r['ratio']:.3f}", str(r["collectives"]), f"{r['bytes'] / 1e6:.2f}",
                "-" if r["host_synchronisations"] is None else str(r["host_synchronisations"]),
                f"{1e6 * r['seconds_of_collectives_on_node']:.0f}", f"{r['ratio_on_node']:.3f}",
            )  # fmt: skip
    return found


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", metavar="RECIPE:IMAGES", default=ON_GPU if gpu else ON_CPU)
    parser.add_argument("--rounds", type=int, default=15 if gpu else 5)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the node for which collectives are computed")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/group-<device>.json")
    options = parser.parse_args()
    device = choose_device("auto")
    torch.backends.cudnn.benchmark = True
    node, out = Cluster(options.gpus), options.out or result_path("group", device)
    runs: list[dict[str, Any]] = []
    with group_of_one(device) as group:
        for recipe in map(case, options.cases):
            runs.append(measure(recipe, device, group, options.rounds, node))
            to_come = len(options.cases) - len(runs)
            write_result(out, {"node": asdict(node), "runs": runs}, to_come=to_come, device=device, seed=0)
            Console(stderr=True, style="dim").print(f"{recipe.name}, N = {recipe.batch_size}: done")
            torch.cuda.empty_cache()
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table(runs, node))
    console.print(f"written to {out}", soft_wrap=True)


if __name__ == "__main__":
    main()
