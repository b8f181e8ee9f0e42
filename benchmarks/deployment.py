"""Measure the accuracy of a trained run and its deployed versions: folded, int8, and both read back from NIR files.

python -m benchmarks.deployment runs/cifar10-1 --data DATA --out results/deploy-cifar10.json
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rheobase.data.feed import Feed, first_images
from rheobase.deploy.agreement import record
from rheobase.deploy.formats import nir
from rheobase.deploy.network import Network
from rheobase.tasks.export import quantized
from rheobase.tasks.open import folded, open_file
from rheobase.tasks.verify import LOSS, LOSS_INT8, recognised, verify
from rheobase.train import choose_device
from rheobase.train.record import write_result
from rheobase.train.runs import Run, load_network
from rheobase.train.switches import cudnn


def measure(run: Run, data: Path | None, device: torch.device, images: int, simulated: int) -> dict[str, Any]:
    """Measure the accuracy of all versions, and their agreement with the trained network."""
    recipe = run.recipe
    dataset, timesteps = run.open_data(data), recipe.timesteps
    _, network = folded(run)
    shape = run.data.shape
    integer = quantized(network, dataset, recipe, device)
    versions: dict[str, Network] = {"folded": network, "int8": integer}

    x = first_images(dataset, recipe, images, torch.float64)[0].to(device)
    with cudnn(allow_tf32=False):
        batches = Feed(dataset, recipe, device, torch.float32).testing()
        right = recognised(load_network(run).to(device, torch.float32), batches, timesteps)
    trained = float(right.double().mean())
    result: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for name, version in versions.items():
            dtype = torch.float64 if name == "int8" else torch.float32
            path = Path(folder) / f"{name}.nir"
            nir.write(version, path, shape)
            found = verify(path, run, data=data, images=images, simulated=simulated, device=device, right=right)
            result.setdefault("trained", {"accuracy": trained})
            if found.integer and _same_logits(version.to(device), path, x, timesteps):
                own = found.deployed  # integers are exact: what is equal on these images is equal on all
            else:
                with cudnn(allow_tf32=False):
                    batches = Feed(dataset, recipe, device, dtype).testing()
                    own = float(recognised(version.to(device, dtype), batches, timesteps).double().mean())
            result[name] = {"accuracy": own, "agreement": asdict(found.agreement)}
            result[f"{name} file"] = {
                "accuracy": found.deployed,
                "bytes": path.stat().st_size,
                "simulation": None if found.simulation is None else asdict(found.simulation),
            }
    result["folding within"] = {"points": 100 * abs(trained - result["folded"]["accuracy"]), "wanted": 100 * LOSS}
    result["int8 below"] = {"points": 100 * (trained - result["int8"]["accuracy"]), "wanted": 100 * LOSS_INT8}
    return result


def _same_logits(version: Network, path: Path, x: Tensor, timesteps: int) -> bool:
    read = open_file(path)
    assert isinstance(read, Network)
    return torch.equal(*(record(n, x, timesteps).logits for n in (version, read.to(x.device))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=64, help="number to compare spike by spike")
    parser.add_argument("--simulated", type=int, default=1, help="number of these to run in the event-driven simulator")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run, device = Run(args.run), choose_device(args.device)
    results = measure(run, args.data, device, args.images, args.simulated)
    table = Table("version", "test accuracy %")
    for name, found in results.items():
        if "accuracy" in found:
            table.add_row(name, f"{100 * found['accuracy']:.2f}")
    Console().print(table)
    if args.out:
        content = {"recipe": asdict(run.recipe), "results": results}
        write_result(args.out, content, device=device, seed=run.recipe.seed, data=run.data.fingerprint)


if __name__ == "__main__":
    main()
