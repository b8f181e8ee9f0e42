"""Convert the ReLU network of a run into a spiking network that records where it came from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rheobase.convert import convert
from rheobase.data import Dataset
from rheobase.data.feed import generator, preprocessed
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF
from rheobase.recipes import Recipe
from rheobase.tasks.open import About
from rheobase.train.runs import Run, load_network

IMAGES = 256


def convert_run(
    run: Run,
    method: str,
    timesteps: int,
    *,
    data: Path | None = None,
    images: int = IMAGES,
    seed: int = 0,
    device: torch.device | None = None,
    **options: Any,
) -> Network:
    """Convert by `method`, calibrated on `images` training images that the seed selects.

    `options` are those of the method.
    """
    where = device or torch.device("cpu")
    model = load_network(run).float().to(where)
    few = None
    if method != "qcfs":
        few = calibration_images(run.open_data(data), run.recipe, images, seed).to(where)
    try:
        network = convert(model, method, timesteps, few, **options).cpu()
    except ValueError as error:
        raise ValueError(f"{run.folder}: {error}") from None
    network.info.update(About(spiking_recipe(run.recipe, network, timesteps), run.data).as_dict())
    network.info["converted"] = {
        "from": run.folder.name,
        "recipe": run.recipe.name,
        "sha256": run.trained().sha256(),
        "method": method,
        "options": options,
        "images": 0 if few is None else len(few),
        "seed": seed,
    }
    return network


def calibration_images(dataset: Dataset, recipe: Recipe, count: int, seed: int) -> Tensor:
    """Return training images as the network sees them in evaluation, without augmentation. The seed selects them."""
    if len(dataset.train.shape) != 3:
        raise ValueError(f"convert: {dataset.info.name} holds recordings; only networks for images can be converted")
    order = torch.randperm(len(dataset.train), generator=generator(seed))[:count]
    return preprocessed(dataset, recipe, dataset.train, order.sort().values, torch.float32)[0]


def spiking_recipe(recipe: Recipe, network: Network, timesteps: int) -> Recipe:
    """Return the recipe that the network was trained with, with its new neurons."""
    (reset,) = {node.reset for node in network.nodes.values() if isinstance(node, LIF)}
    neuron: dict[str, Any] = {"neuron": "lif", "levels": Recipe.levels, "decay": 1.0, "reset": reset}
    return replace(recipe, timesteps=timesteps, precision="fp32", **neuron)
