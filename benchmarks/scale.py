"""Compare the model of `rheobase plan` for several GPUs with 1, 2 and 4 processes on this CPU that train over gloo.

    python -m benchmarks.scale                        needs 16 cores

All processes share the batch of a step, and each has its own threads and cores. The prediction uses three measurements,
made before the group trains: the step of processes that run at the same time but exchange nothing, the latency of gloo,
and its bandwidth. `benchmarks.rehearsal` describes them. GPUs share no memory and are hardly ever late, so
`rheobase plan` uses the step of a single GPU instead. The results also contain the step of a single process.

Results of `benchmarks.group` are compared too, if they are from the GPU whose step times come with the package. A group
of one process waits for nothing, so the prediction is the step of one process.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.output import result_path
from benchmarks.rehearsal import Rehearsal, rehearse
from rheobase import recipes, train
from rheobase.data import Dataset, Split, expected
from rheobase.recipes import Recipe
from rheobase.train import distributed, scale, steptimes
from rheobase.train.heap import keep_freed_memory
from rheobase.train.record import write_result
from rheobase.train.scale import Cluster
from rheobase.train.steptimes import Estimate

CPU = torch.device("cpu")
CLASSES = 10
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["rheobase.train"])


def noise(recipe: Recipe, images: int) -> Dataset:
    """Return images of noise: their content does not change the speed."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 3, recipe.image_size, recipe.image_size), generator=random)
    train_part = Split(pixels.to(torch.uint8), torch.arange(images) % CLASSES)
    test_part = Split(train_part.images[:CLASSES], train_part.labels[:CLASSES])
    return Dataset.of("noise", train_part, test_part, tuple(map(str, range(CLASSES))))


def step_seconds(recipe: Recipe, data: Dataset, folder: Path) -> float:
    """Train in this process or its group, and return the seconds of a step from the metrics."""
    run = train.fit(recipe, dataset=data, out=folder, device="cpu", save_every=3600)
    _, *rows = run.rows()  # the first epoch warms up
    return statistics.median(row["seconds"] for row in rows) * recipe.batch_size / len(data.train)


class Found(NamedTuple):
    """Results of one process."""

    seconds: float
    """Seconds of a training step, alone or in the group."""
    rehearsal: Rehearsal | None = None


def member(
    answer: Connection, rank: int, world: int, port: int, cores: list[int], recipe: Recipe, steps: int, out: Path
) -> None:
    """Run one process, in a group or alone."""
    keep_freed_memory()  # as the command does
    torch.set_num_threads(len(cores))
    os.sched_setaffinity(0, cores)
    data = noise(recipe, steps * recipe.batch_size)
    if world == 1:
        answer.send(Found(step_seconds(recipe, data, out)))
        return
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    own = share(recipe, world)
    with distributed.team(CPU):
        rehearsal = rehearse(own, noise(own, steps * own.batch_size))
        answer.send(Found(step_seconds(recipe, data, out), rehearsal))


def share(recipe: Recipe, world: int) -> Recipe:
    """Return the recipe with the share of the batch of one process in a group."""
    info = noise(recipe, recipe.batch_size).info
    return replace(recipe, batch_size=scale.share(recipe, info, Cluster(world)))


def team(recipe: Recipe, steps: int, world: int, threads: int) -> list[Found]:
    """Start `world` processes and return the results of each."""
    cores = sorted(os.sched_getaffinity(0))
    if world * threads > len(cores):
        raise ValueError(f"{world} processes of {threads} threads need {world * threads} cores; there are {len(cores)}")
    port, processes, answers = _free_port(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            here, there = PROCESSES.Pipe(duplex=False)
            own = cores[rank * threads : (rank + 1) * threads]
            options = (there, rank, world, port, own, recipe, steps, Path(folder) / "run")
            processes.append(PROCESSES.Process(target=member, args=options))
            answers.append(here)
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"processes ended with {[process.exitcode for process in processes]}")
        return [answer.recv() for answer in answers]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def measure(recipe: Recipe, world: int, threads: int, steps: int, whole: float) -> dict[str, Any]:
    """Predict and measure a step whose batch `world` processes share. In one process, it takes `whole` seconds."""
    if world == 1:
        (again,) = team(recipe, steps, 1, threads)
        return compare(recipe, 1, whole, alone=whole, rehearsal=None, measured=again.seconds)
    (alone,) = team(share(recipe, world), steps, 1, threads)
    first, *_ = team(recipe, steps, world, threads)
    return compare(recipe, world, whole, alone=alone.seconds, rehearsal=first.rehearsal, measured=first.seconds)


def compare(
    recipe: Recipe, world: int, whole: float, *, alone: float, rehearsal: Rehearsal | None, measured: float
) -> dict[str, Any]:
    """Predict from the measurements of one process, or of several in rehearsal, and compare."""
    info = noise(recipe, recipe.batch_size).info
    traffic, _ = scale.counted(recipe, info)
    cluster = Cluster(world, inside=rehearsal.link, start=0.0) if rehearsal else Cluster(world)
    own = scale.share(recipe, info, cluster)
    step_times = {recipe.batch_size: whole, own: rehearsal.slowest if rehearsal else whole}
    predicted = scale.predict(recipe, info, cluster, traffic, lambda n, _: Estimate(step_times[n], "measured", "here"))
    return {
        "processes": world,
        "batch": own,
        "alone_seconds": alone,
        "beside_others_seconds": rehearsal and rehearsal.beside,
        "slowest_seconds": rehearsal and rehearsal.slowest,
        "idle_latency_seconds": rehearsal and rehearsal.idle_latency,
        "latency_seconds": rehearsal and rehearsal.link.latency,
        "bytes_per_second": rehearsal and rehearsal.link.bandwidth,
        "collectives": traffic.collectives,
        "bytes": traffic.bytes,
        "statistics_seconds": predicted.statistics,
        "gradients_seconds": predicted.gradients,
        "predicted_seconds": predicted.step,
        "measured_seconds": measured,
        "predicted_to_measured": predicted.step / measured,
        "measured_efficiency": whole / (world * measured),
    }


def groups_of_one(results: Path) -> list[dict[str, Any]]:
    """Return predicted and measured seconds of the steps that benchmarks.group has timed."""
    rows = []
    for path in sorted(results.glob("group-*.json")):
        content = json.loads(path.read_text())
        if content["record"]["device"] != steptimes.table().device:
            continue
        for run in content["runs"]:
            setting, measured = run["setting"], run["results"]["joined"]["seconds"]
            changes = [f"timesteps={setting['timesteps']}", f"batch_size={setting['batch']}", "short_epochs=0"]
            recipe = recipes.get(setting["recipe"]).changed(changes)
            data = expected(recipe.data, size=recipe.image_size, timesteps=recipe.timesteps)
            (predicted,) = scale.forecast(recipe, data, Cluster()).predictions
            seconds = {"predicted_seconds": predicted.step, "measured_seconds": measured}
            known = {"predicted_to_measured": predicted.step / measured, "kind": predicted.kind, "source": path.name}
            rows.append({**setting, **seconds, **known})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the model of several GPUs with processes on this CPU.")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=4, help="per process")
    parser.add_argument("--network", default="resnet8")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="images for all processes together")
    parser.add_argument("--steps", type=int, default=10, help="per epoch")
    parser.add_argument("--epochs", type=int, default=4, help="the first one warms up")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/scale-cpu.json")
    options = parser.parse_args()
    names = ("network", "image_size", "timesteps", "batch", "steps", "epochs", "threads")
    setting = {name: getattr(options, name) for name in names}
    changes = [f"{name}={setting[name]}" for name in ("network", "image_size", "timesteps", "epochs")]
    recipe = recipes.get("demo").changed([*changes, f"batch_size={options.batch}", "padding=0", "evaluate_every=1000"])
    out = options.out or result_path("scale", CPU)
    (whole,) = team(recipe, options.steps, 1, options.threads)
    runs, groups = [], groups_of_one(Path("results"))
    for row in groups:
        print(f"{row['network']}, group of one, {row['batch']} images: {_compared(row)}")
    for world in options.processes:
        row = measure(recipe, world, options.threads, options.steps, whole.seconds)
        runs.append(row)
        print(f"{world} processes of {row['batch']} images: {_compared(row)}", flush=True)
        content = {"setting": setting, "runs": runs, "groups_of_one": groups}
        write_result(out, content, to_come=len(options.processes) - len(runs), device=CPU, seed=recipe.seed)
    print(f"written to {out}")


def _compared(row: dict[str, Any]) -> str:
    predicted, measured = (1e3 * row[f"{what}_seconds"] for what in ("predicted", "measured"))
    return f"predicted {predicted:.2f} ms, measured {measured:.2f} ms ({row['predicted_to_measured']:.2f})"


if __name__ == "__main__":
    main()
