"""The network behind a path: of a run, in a file, or one that comes with the package; and what it was trained on."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase.data import DataInfo
from rheobase.deploy import formats, shipped
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import onnx
from rheobase.deploy.network import Network
from rheobase.deploy.shapes import outputs
from rheobase.recipes import Recipe
from rheobase.train.casting import hold_weights
from rheobase.train.runs import Run, channels_last, load_network
from rheobase.train.step import AUTOCAST

LONGEST = 2**12  # timesteps that a file may ask for


@dataclass(frozen=True)
class About:
    """What a network was trained by and on."""

    recipe: Recipe
    data: DataInfo

    def as_dict(self) -> dict[str, Any]:
        """As exported files keep it."""
        return {"recipe": asdict(self.recipe), "data": self.data.as_dict()}


def about(network: Network | onnx.Session, source: object) -> About:
    """What the network in `source` says of itself."""
    recipe, data = network.info.get("recipe"), network.info.get("data")
    if not isinstance(recipe, dict) or not isinstance(data, dict):
        raise ValueError(f"{source} does not say what it was trained on; export it again from its run")
    stated = About(Recipe.of(recipe, source), DataInfo.of(data, source))
    if isinstance(source, Path) and source.is_file():
        _check_fit(network, stated, source)
    return stated


def _check_fit(network: Network | onnx.Session, stated: About, path: Path) -> None:
    """Raise a ValueError if the network in a file is not one for the data it states, or too large to be run on them."""
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
    """The trained network of a run, and its folded version, which knows what it was trained on."""
    model = load_network(run)
    network = fold(model)
    network.info.update(About(run.recipe, run.data).as_dict())
    return model, network


def input_dtype(network: nn.Module | onnx.Session) -> torch.dtype:
    """The type of numbers that a network takes."""
    return next(network.parameters()).dtype if isinstance(network, nn.Module) else torch.float32


def as_run(recipe: Recipe, network: nn.Module, device: torch.device) -> Recipe:
    """The recipe with the precision in which to run: on a GPU that of the training, where a network has no integers."""
    integer = isinstance(network, Network) and network.integer
    return recipe if device.type == "cuda" and not integer else replace(recipe, precision="fp32")


def ready(network: nn.Module, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The network on that device, to be run under the recipe's autocast and no more."""
    network = network.to(device, dtype)
    if device.type != "cuda":
        return network
    if recipe.precision in AUTOCAST:
        hold_weights(network, AUTOCAST[recipe.precision])
    return channels_last(network)


def open_file(path: Path) -> Network | onnx.Session:
    """The network in a file that `fold` or `export` wrote."""
    return formats.of_file(path).load(path)


def open_run(source: Path) -> Run | Path:
    """The run in a folder, or of the network of that name that comes with the package; or else the file there."""
    found = shipped.find(source)
    return Run(found) if found.is_dir() else found


def open_trained(source: Path) -> Run:
    """The same for what needs a network as it was trained."""
    found = open_run(source)
    if not isinstance(found, Run):
        raise ValueError(f"{source} is a file of a deployed network; give the run that it came from")
    return found


def open_as_it_is(source: Path) -> tuple[nn.Module | onnx.Session, About]:
    """The network of a run as it was trained, which need not fold; or the network in a file. What it was trained on."""
    found = open_run(source)
    if isinstance(found, Run):
        return load_network(found), About(found.recipe, found.data)
    network = open_file(found)
    return network, about(network, source)


def open_network(source: Run | Path) -> Network | onnx.Session:
    """The folded network of a run, or the network in a file."""
    return folded(source)[1] if isinstance(source, Run) else open_file(source)
