"""Keep a run without its weights for publication: recipe, environment, metrics, learning curves.

python -m tools.keep runs/cifar10_resnet19_t2-1 results/cifar10/t2 --data DATA

The network is also evaluated at other numbers of timesteps. The kept folder is still the folder of a run.
"""

import argparse
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rheobase.report import plots
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import choose_device
from rheobase.train.record import write_result
from rheobase.train.runs import START, Run

FILES = ("recipe.json", "data.json", "environment.json", "metrics.jsonl")
TIMESTEPS = (1, 2, 3, 4, 6, 8)
MEASURED = "timesteps.json"  # the accuracy at these


def files(run: Path) -> list[str]:
    """Return the names of the files that describe a run."""
    return [*FILES, *([START] if (run / START).exists() else [])]


def keep(run: Path, out: Path) -> None:
    """Copy the files that describe the run in the folder `run`, without paths of this machine.

    They replace those of another run in `out`, and what was measured with its weights.
    """
    rows = Run(run).rows()
    if not rows:
        raise ValueError(f"{run} has no finished epoch to keep; train it first")
    if "record" not in Run(run).read("environment.json"):
        raise ValueError(f"{run / 'environment.json'} has no record of how the run was made; train it again to keep it")
    out.mkdir(parents=True, exist_ok=True)
    for name in (START, MEASURED):
        (out / name).unlink(missing_ok=True)
    for name in files(run):
        shutil.copyfile(run / name, out / name)
    if find_spec("matplotlib"):
        plots.learning_curves(rows, out / "curves.png")


def against_timesteps(run: Path, data: Path | None, device: str) -> dict[str, Any]:
    """Return test accuracy, loss and firing rates of the trained network at several numbers of timesteps."""
    return {str(t): asdict(evaluate_run(run, data=data, timesteps=t, device=device)) for t in TIMESTEPS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-timesteps", action="store_true", help="do not evaluate at other numbers of timesteps")
    options = parser.parse_args()
    keep(options.run, options.out)
    if not options.no_timesteps:
        found = against_timesteps(options.run, options.data, options.device)
        run = Run(options.run)
        how = {"device": choose_device(options.device), "seed": run.recipe.seed, "data": run.data.fingerprint}
        write_result(options.out / MEASURED, {"timesteps": found}, **how)
    print(f"kept in {options.out}")


if __name__ == "__main__":
    main()
