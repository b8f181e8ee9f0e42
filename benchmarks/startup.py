"""Measure the seconds from the start of `rheobase train` to its first step, and those of the imports.

python -m benchmarks.startup                                               the demo
python -m benchmarks.startup cifar10_resnet19_t2 --data DATA --before OTHER_CHECKOUT

A cold start has an empty Triton cache; a warm start comes after it. With another checkout, both take turns, and the
order changes every round. Options that the benchmark does not know go to `rheobase train`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import rheobase
from benchmarks import checkouts
from benchmarks.output import result_path
from rheobase.train import choose_device
from rheobase.train.record import write_result
from rheobase.train.sources import tree_id

OWN = Path(rheobase.__file__).parents[1]
IMPORTS = """
import json, time
times = [time.perf_counter()]
import torch
times.append(time.perf_counter())
import rheobase.train
times.append(time.perf_counter())
print(json.dumps({"import_torch": times[1] - times[0], "import_rheobase_after_it": times[2] - times[1]}))
"""


def measure(source: Path, arguments: list[str]) -> dict[str, float]:
    """Measure the package in `source`: imports, and a first step with cold and with warm caches."""
    with TemporaryDirectory() as name:
        folder, environment = Path(name), {**checkouts.environment(source), "TRITON_CACHE_DIR": f"{name}/triton"}
        found: dict[str, float] = json.loads(_run(["-c", IMPORTS], environment))
        for kind in ("cold", "warm"):
            noted, out = folder / kind, folder / f"{kind}-run"
            started = time.monotonic()
            train = ["train", *arguments, "--out", str(out)]
            _run(["-m", "benchmarks.first_step", str(noted), *train], environment)
            found[f"first_step_{kind}"] = float(noted.read_text()) - started
    return found


def _run(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"rheobase cannot start: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also measure these sources")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/startup-<device>.json")
    options, others = parser.parse_known_args()
    arguments = [*(others or ["demo"]), "--device", options.device]
    sources = {"now": OWN} | ({"before": checkouts.source_folder(options.before)} if options.before else {})
    device = choose_device(options.device)
    out = options.out or result_path("startup", device)
    for source in sources.values():
        _run(["-c", IMPORTS], checkouts.environment(source))  # compiles to bytecode and fills the file cache
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for number in range(options.rounds):
        for name in list(sources)[:: -1 if number % 2 else 1]:
            rounds[name].append(measure(sources[name], arguments))
            print(f"round {number + 1}, {name}:", *(f"{k} {s:.2f} s" for k, s in rounds[name][-1].items()), flush=True)
    seconds = {name: {k: [r[k] for r in found] for k in found[0]} for name, found in rounds.items()}
    medians = {name: {k: statistics.median(v) for k, v in found.items()} for name, found in seconds.items()}
    trees = {name: {"src": tree_id(source)} for name, source in sources.items() if name != "now"}
    content = {**trees, "load": os.getloadavg()[0], "median_seconds": medians, "seconds": seconds}
    write_result(out, content, device=device)
    for name, found in medians.items():
        print(f"median, {name}:", *(f"{k} {s:.2f} s" for k, s in found.items()))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
