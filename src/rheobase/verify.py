"""Runs and files side by side: what a trained network and its deployed versions do on real data."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rheobase import shipped
from rheobase.data import Dataset
from rheobase.data.feed import Feed, as_seen, first_images
from rheobase.deploy import file, nir, nirfile, onnx
from rheobase.deploy.agreement import Agreement, Record, agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.network import Network
from rheobase.deploy.simulate import Operations, simulate
from rheobase.functional import readout
from rheobase.models import SpikingNet
from rheobase.recipe import Recipe
from rheobase.runs import Run, load_data, load_network

CALIBRATION_IMAGES, SAMPLE_IMAGES = 256, 64
LOSS, LOSS_INT8 = 0.0005, 0.003  # of accuracy
SAME_PREDICTIONS = 0.99
SAME_LOGITS = 1e-4  # float32 weights, run in double precision

Batch = tuple[Tensor, Tensor]
Forward = Callable[..., Tensor]  # (x, timesteps) -> logits [T, N, K]


@dataclass(frozen=True)
class Verification:
    """What was found when a file was run against the network it came from."""

    agreement: Agreement  # on the first images, in double precision where the file allows it
    logits: float  # largest difference, in parts of the largest logit
    trained: float  # accuracy on all test images
    deployed: float
    integer: bool
    simulation: "Comparison | None"

    @property
    def simulated_alike(self) -> bool:
        found = self.simulation
        return found is None or (found.different == 0 and found.logits <= SAME_LOGITS)

    @property
    def passed(self) -> bool:
        if not self.simulated_alike:
            return False
        if self.integer:
            return self.trained - self.deployed <= LOSS_INT8
        return abs(self.trained - self.deployed) <= LOSS and self.agreement.predictions >= SAME_PREDICTIONS

    @property
    def verdict(self) -> str:
        if not self.passed:
            only_rounded = self.integer and self.simulated_alike
            return "less accurate than the trained network" if only_rounded else "NOT the same network"
        same_spikes = self.agreement.layers and not any(self.agreement.layers.values())
        if same_spikes and self.logits <= SAME_LOGITS:
            return "the same network, spike for spike"
        return "as accurate as the trained network"


@dataclass(frozen=True)
class Comparison:
    """The reference simulator against the file's network as read by torch."""

    images: int
    different: int  # spikes
    logits: float  # largest difference, in parts of the largest logit
    operations: Operations  # of all nodes, per image


def folded(run: Run) -> tuple[SpikingNet, Network]:
    """The trained network of a run, and its folded version, which knows what it was trained on."""
    model = load_network(run.folder)
    network = fold(model)
    network.info.update(describe(run))
    return model, network


def describe(run: Run) -> dict[str, Any]:
    recipe = run.recipe()
    data = run.data()
    return {
        "recipe": asdict(recipe),
        "network": recipe.network,
        "data": recipe.data,
        "timesteps": recipe.timesteps,
        "shape": [data["channels"], data["size"], data["size"]],
        "classes": list(data["classes"]),
        "mean": data["mean"],
        "std": data["std"],
    }


def recipe_of(network: Network | onnx.Session) -> Recipe:
    """What a deployed network was trained by."""
    if "recipe" not in network.info:
        raise ValueError("this network does not say its recipe; export it again from its run")
    return Recipe.of(network.info["recipe"], "this network")


def calibration_images(dataset: Dataset, recipe: Recipe) -> Tensor:
    """Training images as the network sees them in use: not augmented, no labels."""
    n = len(dataset.train)
    index = torch.arange(min(CALIBRATION_IMAGES, n)) * n // min(CALIBRATION_IMAGES, n)  # from everywhere
    return as_seen(dataset, recipe, dataset.train, index, torch.float64)[0]


@torch.no_grad()
def accuracy(forward: Forward, batches: Iterable[Batch], timesteps: int) -> float:
    correct = total = 0
    for x, labels in batches:
        predicted = readout(forward(x, timesteps)).argmax(1)
        correct += int((predicted.to(labels.device) == labels).sum())
        total += len(labels)
    return correct / total


def precisions(run: Run, data: Path | None, model: SpikingNet, network: Network) -> dict[str, Agreement]:
    """How far the folded network agrees with the trained one (in float64) on test images, by its precision."""
    recipe = run.recipe()
    dataset, timesteps = load_data(recipe, data), recipe.timesteps
    x, _ = first_images(dataset, recipe, SAMPLE_IMAGES, torch.float64)
    expected = record(copy.deepcopy(model).double(), x, timesteps)
    return {
        str(dtype).removeprefix("torch."): agreement(
            expected, record(copy.deepcopy(network).to(dtype), x.to(dtype), timesteps)
        )
        for dtype in (torch.float32, torch.bfloat16)
    }


def input_dtype(network: Network | onnx.Session) -> torch.dtype:
    return next(network.parameters()).dtype if isinstance(network, Network) else torch.float32


def open_file(path: Path) -> Network | onnx.Session:
    """The network in a file that `fold` or `export` wrote."""
    readers: dict[str, Callable[[Path], Network | onnx.Session]] = {
        ".safetensors": file.load,
        ".nir": nir.load,
        ".onnx": onnx.Session,
    }
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(readers)}")
    return readers[path.suffix](path)


def open_network(source: Path) -> Network | onnx.Session:
    """The folded network of a run, the network in a file, or the one of that name that comes with the package."""
    found = shipped.find(source)
    return folded(Run(found))[1] if found.is_dir() else open_file(found)


def verify(
    path: Path,
    run: Run,
    *,
    data: Path | None,
    images: int,
    simulated: int,
    device: torch.device,
    trained: float | None = None,
) -> Verification:
    """Run the file at `path` against the trained network of `run`: `images` of them in detail, all for accuracy.

    That of the trained network is measured too, unless it is known.
    """
    network, model = open_file(path), load_network(run.folder)
    recipe, description = run.recipe(), describe(run)
    timesteps = recipe.timesteps
    for key in ("network", "shape", "classes", "timesteps", "mean", "std"):
        if network.info.get(key) != description[key]:
            raise ValueError(f"{path} is of another {key} than {run.folder}; give the run that it was exported from")
    dataset = load_data(recipe, data)
    simulation = None

    x, _ = first_images(dataset, recipe, images, torch.float64)
    expected = record(model.double(), x, timesteps)
    if isinstance(network, Network):
        own = record(network.double(), x, timesteps)
        if path.suffix == ".nir" and simulated:
            simulation = _simulation(nirfile.read(path), own, x, timesteps, min(simulated, x.shape[-4]))
    else:  # ONNX keeps its spikes to itself
        expected, own = Record({}, expected.logits), Record({}, network(x, timesteps).double())

    dtype = torch.float64 if network.integer else torch.float32
    deployed = network.to(device, dtype) if isinstance(network, Network) else network
    where = device if isinstance(network, Network) else torch.device("cpu")
    if trained is None:
        trained = accuracy(
            model.to(device, torch.float32), Feed(dataset, recipe, device, torch.float32).testing(), timesteps
        )
    own_accuracy = accuracy(deployed, Feed(dataset, recipe, where, dtype).testing(), timesteps)
    logits = _difference(expected.logits, own.logits)
    return Verification(agreement(expected, own), logits, trained, own_accuracy, network.integer, simulation)


def _difference(expected: Tensor, found: Tensor) -> float:
    """The largest one of the logits, in parts of the largest of these."""
    return ((expected - found).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def _simulation(graph: nirfile.Graph, own: Record, x: Tensor, timesteps: int, images: int) -> Comparison:
    different, total, logits = 0, Operations(), []
    for i in range(images):
        result = simulate(graph, x[i].numpy(), timesteps) if x.ndim == 4 else simulate(graph, x[:, i].numpy())
        for name, spikes in result.spikes.items():
            different += int((torch.from_numpy(spikes).flatten(1) != own.spikes[name][:, i]).sum())
        logits.append(torch.from_numpy(result.logits))
        for done in result.operations.values():
            total.additions += done.additions
            total.multiplications += done.multiplications
    per_image = Operations(total.additions // images, total.multiplications // images)
    return Comparison(images, different, _difference(own.logits[:, :images], torch.stack(logits, 1)), per_image)
