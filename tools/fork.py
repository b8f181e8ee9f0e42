"""Continue a run with another recipe that agrees with it so far, so that their common part is trained only once.

python -m tools.fork runs/t2 cifar10_resnet19_t4 runs/t4 && rheobase train --resume runs/t4 --data DATA

The run must be stopped (Ctrl-C) before the epoch in which the recipes part.
"""

import argparse
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from rheobase import recipes
from rheobase.files import write_json
from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.runs import Run


def fork(run: Path, recipe: Recipe, out: Path) -> None:
    """Copy the unfinished run in the folder `run` to `out`, and change its recipe to `recipe`."""
    own, saved = Run(run).recipe, checkpoint.latest(Run(run).checkpoints)
    rows = Run(run).rows()
    if saved is None or not rows:
        raise ValueError(f"{run} has no checkpoint after a finished epoch; train it further first")
    steps = rows[0]["step"]
    begun = range(-(-saved.step // steps))  # epochs; the last one may be incomplete
    free = {"name": "either", "timesteps": 1, "short_timesteps": 0, "short_epochs": 0}
    if replace(own, **free) != replace(recipe, **free):
        raise ValueError(f"{recipe.name} differs from {own.name} in more than timesteps; choose another recipe")
    if any(own.timesteps_at(epoch) != recipe.timesteps_at(epoch) for epoch in begun):
        raise ValueError(
            f"{recipe.name} has other timesteps than {own.name} in the first {len(begun)} epochs; choose another recipe"
        )
    if out.exists():
        raise ValueError(f"{out} exists already; choose another folder")
    part = out.with_name(f".{out.name}.part")  # whoever finds `out` must find all of it
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(run, part)
    write_json(part / "recipe.json", asdict(recipe))
    forked = {"recipe": own.name, "step": saved.step}
    write_json(part / "environment.json", {**Run(run).read("environment.json"), "forked": forked})
    part.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as the run was started with")
    options = parser.parse_args()
    fork(options.run, recipes.get(options.recipe).changed(options.set), options.out)
    print(f"continue with: rheobase train --resume {options.out}")


if __name__ == "__main__":
    main()
