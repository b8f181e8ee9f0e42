"""Compare reading and slicing of recordings with tonic and SpikingJelly, on one core, and check for equal results.

    python -m benchmarks.events recording.aedat ...

Times are CPU times of the thread, as the median of interleaved rounds, so other load matters little. The first call in
a round finds the caches as the previous contender left them ("cold"); "warm" is the mean of further calls. Frames have
the full size of the sensor, as the peers do not downsample. Ours are also timed at the paper's settings.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rheobase.data.events import Events, aedat, counting, read, slices, slicing
from rheobase.train.record import checksum, write_result

OUT = Path("results/events.json")
WINDOW = 30_000
SECONDS = 0.02  # duration of the warm calls in a round
MADE_UP = {  # evenly spread events: their number, and microseconds
    "made up, 0.2 million in 1.3 s": (200_000, 1_300_000),
    "made up, 4 million in 1.2 s": (4_000_000, 1_200_000),
}

Contender = Callable[[], Any]


def timesteps(events: Events) -> int:
    """Return the number of windows that cover the recording."""
    return -(-int(events.t[-1] - events.t[0]) // WINDOW)


def slicers(events: Events) -> dict[str, Contender]:
    """Return functions that cut the recording into frames."""
    cut = partial(slices, events, window=WINDOW, timesteps=timesteps(events))
    found: dict[str, Contender] = {"rheobase": cut}
    if find_spec("numba"):
        found["rheobase without numba"] = partial(_without_numba, cut)
    found["rheobase, 32 x 32"] = partial(cut, size=(32, 32))
    found["rheobase, 5 ms, 42 x 42"] = partial(cut, window=WINDOW // 6, timesteps=6 * timesteps(events), size=(42, 42))
    columns = {"t": events.t, "x": events.x, "y": events.y, "p": events.p}
    if tonic := peer("tonic.transforms"):
        rows = np.zeros(len(events), [("t", np.int64), ("x", np.int16), ("y", np.int16), ("p", bool)])
        for name, values in columns.items():
            rows[name] = values
        to_frame = tonic.ToFrame((events.width, events.height, 2), time_window=WINDOW, include_incomplete=True)
        found["tonic"] = lambda: to_frame(rows)
    if jelly := peer("spikingjelly.datasets.utils"):
        found["spikingjelly"] = lambda: jelly.integrate_events_by_fixed_duration(
            columns, WINDOW, events.height, events.width
        )
    return found


def readers(path: Path) -> dict[str, Contender]:
    """Return functions that read the file."""
    version_3 = path.read_bytes().startswith(aedat.MAGIC_3)
    found: dict[str, Contender] = {"rheobase": lambda: read(path)}
    if tonic := peer("tonic.io"):
        found["tonic"] = lambda: _tonic(tonic, path, version_3)
    if version_3 and (jelly := peer("spikingjelly.datasets.utils")):
        found["spikingjelly"] = lambda: jelly.load_aedat_v3(path)
    return found


def compare(contenders: dict[str, Contender], events: int, rounds: int, differs: Callable[[Any, Any], str]) -> Any:
    """Time all contenders in turn, and say how their results differ from ours."""
    results = {name: _attempt(run) for name, run in contenders.items()}
    reference = results["rheobase"][0]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, (_, problem) in results.items() if not problem}
    for _ in range(rounds):
        for name, measured in times.items():
            measured.append((_seconds(contenders[name], 0), _seconds(contenders[name], SECONDS)))
    table = {}
    for name, (result, problem) in results.items():
        row: dict[str, Any] = {"result": problem or differs(result, reference) or "equal"}
        if not problem:
            cold, warm = (statistics.median(column) for column in zip(*times[name], strict=True))
            row |= {"seconds": warm, "million_events_per_second": events / warm / 1e6}
            row |= {"million_events_per_second_cold": events / cold / 1e6}
        table[name] = row
        rates = (row.get(f"million_events_per_second{kind}", 0) for kind in ("", "_cold"))
        print(f"  {name:24}", *(f"{rate:9.2f}" for rate in rates), f" M events/s warm, cold  {row['result']}")
    return table


def _seconds(run: Contender, at_least: float) -> float:
    """Return the mean time of one or more calls that take at least this long together."""
    start, calls, spent = time.thread_time(), 0, 0.0
    while not calls or spent < at_least:
        run()
        calls, spent = calls + 1, time.thread_time() - start
    return spent / calls


def main() -> None:
    parser = argparse.ArgumentParser(description="Time reading and slicing of recordings.")
    parser.add_argument("recordings", type=Path, nargs="*", help="AEDAT 2.0 or 3.1 files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "window_us": WINDOW,
        "recordings": [],
    }
    recordings = [(path.name, path, read(path)) for path in arguments.recordings]
    recordings += [(name, None, _made_up(*size)) for name, size in MADE_UP.items()]
    for name, path, events in recordings:
        print(f"{name}: {len(events)} events")
        row: dict[str, Any] = {"name": name, "events": len(events)}
        if path:
            row["reading"] = compare(readers(path), len(events), arguments.rounds, columns_differ)
        frames = slices(events, window=WINDOW, timesteps=timesteps(events))
        row |= {"frames": len(frames), "megabytes_of_frames": frames.nbytes / 1e6}
        row["slicing"] = compare(slicers(events), len(events), arguments.rounds, partial(_frames_differ, events))
        content["recordings"].append(row)
    data = checksum(arguments.recordings) if arguments.recordings else None
    write_result(arguments.out, content, seed=0, data=data)


def _without_numba(cut: Contender) -> Any:
    counter, slicing._counter = slicing._counter, lambda: counting
    try:
        return cut()
    finally:
        slicing._counter = counter


def _made_up(events: int, microseconds: int) -> Events:
    random = np.random.default_rng(0)
    x, y = (random.integers(0, 128, events).astype(np.uint16) for _ in range(2))
    p = random.integers(0, 2, events).astype(np.uint8)
    return Events(np.sort(random.integers(0, microseconds, events)), x, y, p, 128, 128)


def peer(module: str) -> ModuleType | None:
    """Import a module of another library; None if that is not possible."""
    package = module.partition(".")[0]
    try:
        if package == "spikingjelly":
            _alone("spikingjelly.datasets")
            stand_in = ModuleType("torchvision")  # needed by its other datasets, but not for integration
            stand_in.transforms = None  # type: ignore[attr-defined]
            sys.modules.setdefault("torchvision", stand_in)
        elif package == "tonic":
            _alone("tonic")
        return importlib.import_module(module)
    except ImportError as error:
        print(f"  {module} left out: {error}")
        return None


def _alone(package: str) -> None:
    """Allow to import modules of a package without the imports of the package itself: librosa, torchvision and more."""
    if package in sys.modules:
        return
    spec = find_spec(package.partition(".")[0])
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"no package {package}")
    stand_in = ModuleType(package)
    stand_in.__path__ = [str(Path(root, *package.split(".")[1:])) for root in spec.submodule_search_locations]
    sys.modules[package] = stand_in


def _tonic(tonic: ModuleType, path: Path, version_3: bool) -> Any:
    read_file = tonic.read_dvs_ibm if version_3 else tonic.read_dvs_128
    _, rows = read_file(str(path))
    return rows


def columns_differ(result: Any, reference: Events) -> str:
    """Return how the events differ; empty if they are equal."""
    found = {name: getattr(result, name) if isinstance(result, Events) else result[name] for name in "txyp"}
    if len(found["t"]) != len(reference):
        return f"{len(found['t'])} events instead of {len(reference)}"
    different = [name for name in "txyp" if not np.array_equal(found[name], getattr(reference, name))]
    return f"differs in {', '.join(different)}" if different else ""


def _frames_differ(events: Events, result: np.ndarray, reference: np.ndarray) -> str:
    if result.shape != reference.shape:  # other windows or sizes: put every event where it belongs
        (steps, _, height, width), window = result.shape, WINDOW * len(reference) // len(result)
        reference = np.zeros(result.shape, np.int64)
        cells = (events.t - events.t[0]) // window, events.p, *_scaled(events, width, height)
        inside = cells[0] < steps
        np.add.at(reference, tuple(cell[inside] for cell in cells), 1)
    return "" if np.array_equal(result, reference) else "differs"


def _scaled(events: Events, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    y, x = events.y.astype(np.int64), events.x.astype(np.int64)
    return y * height // events.height, x * width // events.width


def _attempt(run: Contender) -> tuple[Any, str]:
    try:
        return run(), ""
    except Exception as error:
        return None, f"fails: {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
