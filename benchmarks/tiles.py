"""Find the fastest tiles of the fused soma's Triton kernels on this GPU.

    python -m benchmarks.tiles

For each of the four steps, every size of tile, number of warps and number of programs is timed on the largest inputs of
the somas of ResNet-19, 34 and 50. Results are compared with those of the tiles in use, `rheobase.kernels.triton.TILES`.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.contenders import Setting
from benchmarks.output import result_path
from benchmarks.soma import Shape, shapes, steps
from rheobase.files import finite_or_null
from rheobase.kernels.launching import compiled_ahead
from rheobase.kernels.triton import PROGRAMS, TILES, Tile
from rheobase.train.record import write_result

NETWORKS = {"resnet19": (256, 32), "resnet34": (48, 224), "resnet50": (32, 224)}  # images, and their side
LARGEST = 5  # shapes per network and number of branches, which move most of the bytes
ELEMENTS, WARPS, PER_THREAD = (128, 256, 512, 1024), (1, 2, 4), (2, 4, 8)
ALONE = (None,)  # one tile per program
LIMITS = {
    "statistics": (PROGRAMS // 2, PROGRAMS, 2 * PROGRAMS),
    "forward": ALONE,
    "backward_sums": (PROGRAMS // 2, PROGRAMS, 2 * PROGRAMS),
    "backward_inputs": (None, PROGRAMS, 2 * PROGRAMS, 4 * PROGRAMS),
}


def candidates(step: str) -> list[Tile]:
    """Return the tiles to try for a step, those in use first."""
    found = [
        Tile(elements, warps, programs)
        for elements, warps, programs in product(ELEMENTS, WARPS, LIMITS[step])
        if elements // (32 * warps) in PER_THREAD
    ]
    return [TILES[step], *(tile for tile in found if tile != TILES[step])]


Calls = list[tuple[int, dict[str, Callable[[], Any]]]]
"""How many somas receive an input of some shape, and the four steps on it."""


def largest_shapes(setting: Setting) -> dict[Shape, int]:
    """Return the inputs that move most of the bytes, and how many somas receive each."""
    found, kept = shapes(setting), []
    for branches in (1, 2):
        own = [shape for shape in found if shape.branches == branches and not shape.static]
        own.sort(key=lambda shape: found[shape] * prod(shape.sequence), reverse=True)
        kept += own[:LARGEST]
    return {shape: found[shape] for shape in kept}


def largest(setting: Setting) -> Calls:
    """Return the steps on the inputs that move most of the bytes."""
    return [
        (times, {name: call for name, (_, call) in steps(shape, setting, "triton").items()})
        for shape, times in largest_shapes(setting).items()
    ]


@contextmanager
def using(step: str, tile: Tile) -> Iterator[None]:
    """Use this tile for a step meanwhile."""
    used = TILES[step]
    TILES[step] = tile
    try:
        yield
    finally:
        TILES[step] = used


def compile_all(calls: Calls) -> None:
    """Compile the kernels of all candidates at once, as before training."""
    with compiled_ahead():
        for step in TILES:
            for tile in candidates(step):
                with using(step, tile):
                    for _, named in calls:
                        named[step]()


def tried(
    calls: Calls, step: str, seconds: Callable[[Callable[[], Any]], float]
) -> Iterator[tuple[Tile, float, float]]:
    """Yield every tile with its time for all somas in seconds, and its difference from the tile in use."""
    expected = [named[step]() for _, named in calls]
    for tile in candidates(step):
        with using(step, tile):
            found = [named[step]() for _, named in calls]
            time = sum(times * seconds(named[step]) for times, named in calls)
        yield tile, time, difference(found, expected)


def difference(found: Any, expected: Any) -> float:
    """Return the largest relative difference of two results, each of tensors; NaN if there is any NaN."""
    pairs = zip(tree_leaves(found), tree_leaves(expected), strict=True)
    norms = [((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs if len(b)]
    return float(torch.stack(norms).max())


def cold_seconds(call: Callable[[], Any]) -> float:
    """Return the median time of a launch with cold caches."""
    from triton.testing import do_bench

    return do_bench(call, warmup=5, rep=20, return_mode="median") / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the fastest tiles of the fused soma's kernels.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--out", type=Path, help="JSON file; by default results/tiles-<device>.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("tiles need a GPU")
    rows, device = [], torch.device("cuda")
    out = arguments.out or result_path("tiles", device)
    for done, network in enumerate(arguments.networks, 1):
        batch, size = NETWORKS[network]
        calls = largest(Setting(arguments.timesteps, batch, "cuda", network, size, half=True))
        compile_all(calls)
        for step in TILES:
            found = []
            for tile, time, different in tried(calls, step, cold_seconds):
                own = {"us_per_image_timestep": 1e6 * time / (arguments.timesteps * batch), "difference": different}
                found.append({"network": network, "step": step, **tile._asdict(), **own})
            rows += found
            fastest = sorted(found, key=lambda row: row["us_per_image_timestep"])[:3]
            print(f"{network} {step}: in use {shown(found[0])}; fastest {', '.join(map(shown, fastest))}", flush=True)
        content = {"timesteps": arguments.timesteps, "results": finite_or_null(rows)}
        write_result(out, content, to_come=len(arguments.networks) - done, device=device)


def shown(row: dict[str, Any]) -> str:
    """Return a tile and its time as text."""
    return f"{tuple(row[name] for name in Tile._fields)} {row['us_per_image_timestep']:.2f} us"


if __name__ == "__main__":
    main()
