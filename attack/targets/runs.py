"""The folder of a run: its JSON files, its metrics, and a checkpoint, also with correct checksums."""

import hashlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from attack.mutations import json_text
from attack.targets import Target
from attack.targets.networks import safetensors_file
from rheobase import recipes
from rheobase.data.feed import first_images
from rheobase.tasks.compare import compare
from rheobase.train import fit
from rheobase.train.checkpoint import SUMS
from rheobase.train.runs import Run, load_network

LONGEST = 16  # timesteps; a run may ask for any number, which would take long


@cache
def run_files(*settings: str) -> dict[str, bytes]:
    """Return the files of a run of one epoch on the digits."""
    recipe = recipes.get("demo").changed(["epochs=1", "batch_size=1000", *settings])
    with TemporaryDirectory() as folder:
        run = fit(recipe, out=Path(folder) / "run", device="cpu")
        found = {str(p.relative_to(run.folder)): p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if not name.startswith(".") and not name.endswith(".png")}


def _records() -> dict[str, bytes]:
    return {name: content for name, content in run_files().items() if not name.startswith("checkpoints")}


def _weights() -> dict[str, bytes]:
    return {name: content for name, content in run_files().items() if not name.endswith((".jsonl", "environment.json"))}


def records(folder: Path) -> None:
    """Read what `compare` reads, and what every command reads first."""
    compare([folder])
    run = Run(folder)
    _ = run.start, run.parts, run.data_path(None)


@torch.no_grad()
def weights(folder: Path) -> None:
    """Run the trained network on an image of its dataset."""
    run = Run(folder)
    network = load_network(run)
    dtype = next(network.parameters()).dtype
    x, _ = first_images(run.open_data(None), run.recipe, 1, dtype)
    network(x, min(run.recipe.timesteps, LONGEST))


def sums(folder: Path) -> None:
    """Correct the checksums of every checkpoint."""
    for path in (folder / "checkpoints").iterdir():
        files = (file for file in sorted(path.iterdir()) if file.name != SUMS)
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        (path / SUMS).write_text("".join(lines))


STRUCTURE = {".json": json_text, ".jsonl": json_text, ".safetensors": safetensors_file}
TARGETS = (
    Target("run folder", _records, records, STRUCTURE),
    Target("checkpoint", _weights, weights, STRUCTURE),
    Target("checkpoint, sums agree", _weights, weights, STRUCTURE, repair=sums),
)
