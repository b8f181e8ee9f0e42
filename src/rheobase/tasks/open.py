"""Open a network by path or name, and its data: a run, a file, or a network that comes with the package."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase.analysis.variants import NeuNorm
from rheobase.data import DataInfo, Dataset
from rheobase.deploy import formats, shipped
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import onnx
from rheobase.deploy.network import Network
from rheobase.deploy.shapes import outputs
from rheobase.nn import ReluSoma, somas
from rheobase.recipes import Recipe
from rheobase.train.casting import hold_weights
from rheobase.train.runs import Run, channels_last, load_network, open_data
from rheobase.train.step import AUTOCAST, for_device

__all__ = ["folded", "open_dataset", "open_file", "open_network", "open_run", "open_trained"]

LONGEST = 2**12  # timesteps that a file may state


@dataclass(frozen=True)
class About:
    """The recipe and data that a network was trained with."""

    recipe: Recipe
    data: DataInfo

    def as_dict(self) -> dict[str, Any]:
        """Return it as exported files keep it."""
        return {"recipe": asdict(self.recipe), "data": self.data.as_dict()}


def about(network: Network | onnx.Session, source: object) -> About:
    """Return what the network in `source` states about itself."""
    recipe, data = network.info.get("recipe"), network.info.get("data")
    if not isinstance(recipe, dict) or not isinstance(data, dict):
        raise ValueError(f"{source} does not say what it was trained on; export it again from its run")
    stated = About(Recipe.of(recipe, source), DataInfo.of(data, source))
    if isinstance(source, Path) and source.is_file():
        _check_fit(network, stated, source)
    return stated


def _check_fit(network: Network | onnx.Session, stated: About, path: Path) -> None:
    """Raise a ValueError if the network in a file does not fit the data that it states, or is too large to run."""
    steps, shape, classes = stated.data.timesteps or stated.recipe.timesteps, stated.data.shape, stated.data.classes
    if steps > LONGEST:
        raise ValueError(f"{path}: it states {steps} timesteps; expected at most {LONGEST}")
    if isinstance(network, Network):
        try:
            found = outputs(network, shape, steps, path.stat().st_size)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    else:
        found = network.outputs_of(shape)
    if found != len(classes):
        raise ValueError(f"{path}: it has {found} outputs, but states {len(classes)} classes")


def folded(run: Run) -> tuple[nn.Module, Network]:
    """Return the trained network of a run, and its folded version, which states what it was trained on."""
    model = load_network(run)
    network = fold(model)
    network.info.update(About(run.recipe, run.data).as_dict())
    return model, network


def load_with_spikes(run: Run) -> nn.Module:
    """Return the trained network of a run. Raise a ValueError if the outputs of its layers are not spikes."""
    network = load_network(run)
    if any(isinstance(soma, ReluSoma) for soma in somas(network).values()):
        raise ValueError(
            f"{run.folder}: a ReLU network has no spikes to look at; make a spiking network of it with "
            "`rheobase convert`, and give that file to `rheobase report`"
        )
    if any(isinstance(soma, NeuNorm) for soma in somas(network).values()):
        raise ValueError(
            f"{run.folder}: the outputs of NeuNorm are not spikes, so there are none to look at; give a run with "
            "another normalisation"
        )
    return network


def input_dtype(network: nn.Module | onnx.Session) -> torch.dtype:
    """Return the dtype of the inputs of a network."""
    return next(network.parameters()).dtype if isinstance(network, nn.Module) else torch.float32


def as_run(recipe: Recipe, network: nn.Module, device: torch.device) -> Recipe:
    """Return the recipe with the precision to run in: that of training on a GPU; on a CPU, or in integers, float32."""
    integer = isinstance(network, Network) and network.integer
    return for_device(recipe, device) if device.type == "cuda" and not integer else replace(recipe, precision="fp32")


def ready(network: nn.Module, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Move the network to the device, ready to run under the recipe's autocast only."""
    network = network.to(device, dtype)
    if device.type != "cuda":
        return network
    if recipe.precision in AUTOCAST:
        hold_weights(network, AUTOCAST[recipe.precision])
    return channels_last(network)


def open_file(path: Path) -> Network | onnx.Session:
    """Return the network in a file that `fold`, `convert` or `export` wrote."""
    return formats.of_file(path).load(path)


def open_with_spikes(found: Run | Path, source: object, otherwise: str = "does not show its spikes") -> Network:
    """Return the network of `open_network`. Raise a ValueError for an ONNX file, which does not show its spikes.

    `otherwise` is what to say about such a file.
    """
    is_onnx = isinstance(found, Path) and found.suffix == onnx.SUFFIX
    network = None if is_onnx else open_network(found)  # a file is refused without the packages that read it, too
    if not isinstance(network, Network):
        raise ValueError(f"{source} {otherwise}; give the network that it was exported from")
    return network


def open_run(source: Path) -> Run | Path:
    """Return the run in a folder, or the shipped network with this name; otherwise return the path of a file."""
    found = shipped.find(source)
    return Run(found) if found.is_dir() else found


def open_trained(source: Path) -> Run:
    """Return the run in a folder, or the shipped network with this name. Raise a ValueError for a file."""
    found = open_run(source)
    if not isinstance(found, Run):
        raise ValueError(f"{source} is a file of a deployed network; give the run that it came from")
    return found


def open_as_it_is(source: Path) -> tuple[nn.Module | onnx.Session, About]:
    """Return the network of a run as it was trained, or the network in a file, and what it was trained on."""
    found = open_run(source)
    if isinstance(found, Run):
        return load_network(found), About(found.recipe, found.data)
    network = open_file(found)
    return network, about(network, source)


def open_network(source: Run | Path) -> Network | onnx.Session:
    """Return the folded network of a run, or the network in a file."""
    return folded(source)[1] if isinstance(source, Run) else open_file(source)


def open_dataset(source: Run | Path, stated: About, data: Path | None) -> Dataset:
    """Return the data that the network of a run or file was trained on, from the folder `data` or where they were."""
    if isinstance(source, Run):
        return source.open_data(data)
    return open_data(stated.recipe, stated.data, data, source)
