"""The folder of a run as it is kept, written without a training."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rheobase.recipes import Recipe

SECONDS = 10.0  # from one evaluation to the next


def write_kept(folder: Path, recipe: Recipe, *accuracies: float, forked: Mapping[str, Any] | None = None) -> None:
    """A run with one epoch for each accuracy, on `a GPU`."""
    rows = [
        {"epoch": epoch, "step": 100 * epoch, "elapsed": SECONDS * epoch, "test_accuracy": accuracy}
        for epoch, accuracy in enumerate(accuracies, 1)
    ]
    environment = {"record": {"device": "a GPU"}} | ({"forked": forked} if forked else {})
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe)))
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
