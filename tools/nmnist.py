"""Measure accuracy on a subset of N-MNIST by cross-validation: each recording is tested by a network that never saw it.

    python -m tools.nmnist recordings.npz

The folds are balanced: the recordings of a class go to the folds in turn. The last epoch counts; none is selected.
"""

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from rheobase import recipes, train
from rheobase.data.sets.nmnist import read_arrays
from rheobase.train.record import checksum, write_result

OUT = Path("results/nmnist-small.json")


def fold_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold in which each recording is tested."""
    fold = np.empty(len(labels), int)
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        fold[index] = np.arange(len(index)) % folds
    return fold


def main() -> None:
    parser = argparse.ArgumentParser(description="Cross-validation on a subset of N-MNIST.")
    parser.add_argument("recordings", type=Path, help=".npz with t, x, y, p, offsets, labels")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()

    arrays = read_arrays(arguments.recordings)
    recipe = recipes.get("nmnist").changed(arguments.set)
    fold = fold_of(arrays["labels"], arguments.folds)
    results = []
    for k in range(arguments.folds):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "fold.npz"
            np.savez(data, **{**arrays, "is_test": fold == k})
            start = time.perf_counter()
            run = train.fit(recipe, data=data, out=Path(folder) / "run", device=arguments.device)
            rows = run.rows()
        results.append(
            {
                "fold": k,
                "test_recordings": int((fold == k).sum()),
                "test_accuracy": rows[-1]["test_accuracy"],
                "train_accuracy": rows[-1]["train_accuracy"],
                "seconds": time.perf_counter() - start,
            }
        )
        print(f"fold {k}: {100 * results[-1]['test_accuracy']:.2f} % in {results[-1]['seconds']:.0f} s", flush=True)
    accuracies = [r["test_accuracy"] for r in results]
    summary = {"mean": mean(accuracies), "std": stdev(accuracies), "seconds": sum(r["seconds"] for r in results)}
    print(f"mean {100 * summary['mean']:.2f} % +- {100 * summary['std']:.2f}, {summary['seconds']:.0f} s in total")
    write_result(
        arguments.out,
        {"recordings": len(fold), "recipe": asdict(recipe), "folds": results, **summary},
        device=train.choose_device(arguments.device),
        seed=recipe.seed,
        data=checksum([arguments.recordings]),
    )


if __name__ == "__main__":
    main()
