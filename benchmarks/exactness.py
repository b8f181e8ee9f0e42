"""Check whether a run gives the same bits again, and measure what that costs.

python -m benchmarks.exactness --data DATA             cifar10_resnet19_fast; writes results/exactness-<device>.json
python -m benchmarks.exactness demo --epochs 2

With and without `deterministic`, the same recipe is trained three times, each in its own process. The second run
repeats the first. The third is killed after half of its epochs and continues in another process. Their weights are
compared bit for bit. The seconds are those of the last epoch, when everything is compiled and captured.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import checkouts
from benchmarks.output import result_path
from rheobase.train import choose_device
from rheobase.train.record import write_result
from rheobase.train.runs import Run, load_network

WAY = {False: "fastest algorithms", True: "deterministic"}
PATIENCE = 600  # seconds for one run


def train(arguments: list[str], out: Path, *, kill_after: int | None = None) -> None:
    """Train, or continue, in a separate process. Kill it after `kill_after` epochs."""
    command = [
        sys.executable,
        "-m",
        "rheobase",
        "train",
        *arguments,
        "--out",
        str(out),
        "--continue",
        "--save-every",
        "0",
    ]
    with subprocess.Popen(
        command, env=checkouts.environment(None), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise ValueError(f"{' '.join(command)} takes longer than {PATIENCE} s")
            if kill_after is not None and len(epochs(out)) >= kill_after:
                process.kill()
                return
            time.sleep(0.02)
        if process.returncode:
            _, errors = process.communicate()
            raise ValueError(f"the run failed: {(errors.strip() or 'no message').splitlines()[-1]}")
    if kill_after is not None:
        raise ValueError(f"the run ended before it could be killed after epoch {kill_after}; use more --epochs")


def epochs(out: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run so far."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run."""
    return load_network(Run(out)).state_dict()


def same(one: Path, other: Path) -> bool:
    """Return whether two runs have the same weights, bit for bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def measure(arguments: list[str], number: int, *, deterministic: bool) -> dict[str, Any]:
    """Train three runs of `number` epochs. Return which are the same, and how long an epoch takes."""
    arguments = [*arguments, "--set", f"epochs={number}", "--set", f"deterministic={str(deterministic).lower()}"]
    with TemporaryDirectory() as name:
        first, again, killed = (Path(name) / run for run in ("first", "again", "killed"))
        train(arguments, first)
        train(arguments, again)
        train(arguments, killed, kill_after=number // 2)
        train(arguments, killed)
        return {
            "same_when_repeated": same(first, again),
            "same_when_killed_and_resumed": same(first, killed),
            "epoch_seconds": [epochs(run)[-1]["seconds"] for run in (first, again)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/exactness-<device>.json")
    options, others = parser.parse_known_args()
    others = others if others and not others[0].startswith("-") else ["cifar10_resnet19_fast", *others]
    device = choose_device(options.device)
    ways = {}
    for deterministic, way in WAY.items():
        ways[way] = found = measure([*others, "--device", options.device], options.epochs, deterministic=deterministic)
        seconds = ", ".join(f"{s:.2f}" for s in found["epoch_seconds"])
        answers = {True: "the same weights", False: "other weights"}
        print(f"{way}: repeated {answers[found['same_when_repeated']]},", end=" ")
        print(f"killed and resumed {answers[found['same_when_killed_and_resumed']]}; epochs of {seconds} s", flush=True)
    fastest, exact = (min(found["epoch_seconds"]) for found in ways.values())
    setting = {"recipe": others[0], "epochs": options.epochs}
    out = options.out or result_path("exactness", device)
    write_result(out, {"setting": setting, "slower": exact / fastest, "ways": ways}, device=device)
    print(f"deterministic takes {exact / fastest:.2f} times as long; written to {out}")


if __name__ == "__main__":
    main()
