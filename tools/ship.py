"""Make a network that comes with the package from a run, and measure the file itself.

python -m tools.ship runs/cifar10_resnet19_t2-1 cifar10-resnet19-t2 --data DATA

Writes src/rheobase/deploy/networks/NAME.safetensors and results/shipped/NAME.json.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rheobase.deploy import shipped
from rheobase.deploy.formats import native
from rheobase.tasks.evaluate import evaluate_run
from rheobase.tasks.open import folded
from rheobase.train import choose_device
from rheobase.train.record import checksum, write_result
from rheobase.train.runs import Run

LIMIT = 15 * 2**20  # bytes, of all of them


def ship(run: Path, path: Path, *, data: Path | None, device: str) -> dict[str, Any]:
    """Write the network of `run` to `path`, folded and with 8-bit weights; what was found when that file was run."""
    _, network = folded(Run(run))
    path.parent.mkdir(parents=True, exist_ok=True)
    native.save(network, path, int8=True)
    total = sum(p.stat().st_size for p in path.parent.glob("*.safetensors"))
    if total > LIMIT:
        path.unlink()
        raise ValueError(f"with {path.name}, the networks of the package would have {total} bytes, above {LIMIT}")
    trained, found = (evaluate_run(source, data=data, device=device) for source in (run, path))
    return {
        "name": path.stem,
        "recipe": asdict(Run(run).recipe),
        "bytes": path.stat().st_size,
        "sha256": checksum([path]),
        "trained_accuracy": trained.accuracy,
        "accuracy": found.accuracy,
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
    found = ship(options.run, shipped.FOLDER / f"{options.name}.safetensors", data=options.data, device=options.device)
    out = Path("results") / "shipped" / f"{options.name}.json"
    fingerprint = Run(options.run).data.fingerprint
    write_result(out, found, device=choose_device(options.device), seed=found["recipe"]["seed"], data=fingerprint)
    print(f"trained {100 * found['trained_accuracy']:.2f} %, shipped {100 * found['accuracy']:.2f} %, in {out}")


if __name__ == "__main__":
    main()
