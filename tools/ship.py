"""Turn a run into a network that comes with the package, and evaluate it.

python -m tools.ship runs/cifar10_resnet19_t2-1 cifar10-resnet19-t2 --data DATA

This writes the run with 8-bit weights to src/rheobase/deploy/networks/NAME, and results/shipped/NAME.json. If the run
is that folder itself, it is only evaluated again.
"""

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase.deploy import shipped
from rheobase.deploy.quantize import in_units, int8_unit
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint, choose_device
from rheobase.train.checkpoint import Tensors
from rheobase.train.record import checksum, write_result
from rheobase.train.runs import Run, load_network
from rheobase.train.step import for_device
from tools.keep import files as kept_files

LIMIT = 15 * 2**20  # bytes of one network; tools/package.py limits the package as a whole


def files(folder: Path) -> list[Path]:
    """Return all files in and below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size(folder: Path) -> int:
    """Return the bytes of all files in and below a folder."""
    return sum(path.stat().st_size for path in files(folder))


def eight_bits(network: nn.Module) -> dict[str, Tensors]:
    """Return the tensors of a network for a checkpoint: synapse weights as integers, with a unit per output channel."""
    weights, units = network.state_dict(), {}
    for path, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            name = f"{path}.weight"
            units[name] = int8_unit([layer.weight])
            weights[name] = in_units(layer.weight, units[name]).to(torch.int8)
    return {"weights": weights, "units": units}


def pack(source: Path, name: str) -> Path:
    """Write the run `source` to the package as `name`, and return its folder there."""
    run, folder = Run(source), shipped.FOLDER / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = shipped.FOLDER.with_name(f".{name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for file in kept_files(source):
        shutil.copyfile(source / file, part / file)
    checkpoint.save(part / "checkpoints", run.trained().step, eight_bits(load_network(run)), {})
    if (total := size(part)) > LIMIT:
        shutil.rmtree(part)
        raise ValueError(f"{name} would take {total} bytes in the package, more than {LIMIT}; ship a smaller network")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return folder


def ship(source: Path, name: str, *, data: Path | None, device: str) -> dict[str, Any]:
    """Write the run `source` to the package as `name`, unless it is there already. Return the results of evaluation."""
    run, folder = Run(source), shipped.FOLDER / name
    precision = for_device(run.recipe, choose_device(device)).precision
    if precision != run.precision:
        raise ValueError(
            f"{source} computed in {run.precision}, but this device would evaluate in {precision}; give one like that "
            "of the training with --device, so that only the weights differ"
        )
    if source.resolve() != folder.resolve():
        pack(source, name)
    found = evaluate_run(folder, data=data, device=device)
    return {
        "name": name,
        "recipe": asdict(run.recipe),
        "bytes": size(folder),
        "sha256": checksum(files(folder)),
        "trained_accuracy": run.rows()[-1]["test_accuracy"],
        "accuracy": found.accuracy,
        "precision": found.precision,
        "loss": found.loss,
        "firing_rates": found.firing_rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    found = ship(options.run, options.name, data=options.data, device=options.device)
    out = Path("results") / "shipped" / f"{options.name}.json"
    fingerprint = Run(options.run).data.fingerprint
    write_result(out, found, device=choose_device(options.device), seed=found["recipe"]["seed"], data=fingerprint)
    print(f"trained {100 * found['trained_accuracy']:.2f} %, shipped {100 * found['accuracy']:.2f} %, in {out}")


if __name__ == "__main__":
    main()
