"""Files that conversion reads: the run of a ReLU network, and the file of a converted network to start from."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from attack.targets import Target
from attack.targets.networks import safetensors_file, same_header
from attack.targets.runs import STRUCTURE, run_files, sums
from rheobase import recipes
from rheobase.data.feed import Feed
from rheobase.data.sets.digits import digits
from rheobase.deploy.formats import native
from rheobase.tasks.convert import convert_run
from rheobase.train.runs import Run, network_for
from rheobase.train.start import start_of

RELU = ("neuron=relu", "timesteps=1")
SPIKING = ("timesteps=2", "decay=1.0", "reset=soft", "batch_size=23")
METHODS = ("spike-norm", "calibrated")  # one by currents, one by activations
IMAGES, TIMESTEPS = 8, 2


def _run() -> dict[str, bytes]:
    return {name: content for name, content in run_files(*RELU).items() if not name.endswith("environment.json")}


def convert(folder: Path) -> None:
    """Convert, as the command `convert` does."""
    for method in METHODS:
        convert_run(Run(folder), method, TIMESTEPS, images=IMAGES)


def _converted() -> dict[str, bytes]:
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        for name, content in run_files(*RELU).items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(content)
        path = Path(place) / "net.safetensors"
        native.save(convert_run(Run(run), "calibrated", TIMESTEPS, images=IMAGES, spread=True), path)
        return {path.name: same_header(path.read_bytes())}


def start(folder: Path) -> None:
    """Start from the file, as `train --from` does."""
    (path,) = folder.iterdir()
    recipe = recipes.get("demo").changed(list(SPIKING))
    dataset = digits()
    begins, feed = start_of(path), Feed(dataset, recipe, torch.device("cpu"), torch.float32, 0, 1)
    begins.load_into(network_for(recipe, dataset.info), recipe, feed)


TARGETS = (
    Target("run to convert", _run, convert, STRUCTURE, repair=sums),
    Target("converted network", _converted, start, {".safetensors": safetensors_file}),
)
