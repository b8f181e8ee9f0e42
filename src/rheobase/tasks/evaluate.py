"""Measure a trained or deployed network on its test images."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from rheobase.data.feed import Feed
from rheobase.deploy import shipped
from rheobase.deploy.network import Network
from rheobase.tasks.open import input_dtype, open_file, recipe_of
from rheobase.train import Evaluation, choose_device, evaluate
from rheobase.train.runs import Run, load_data, load_network
from rheobase.train.step import DTYPES


def evaluate_run(
    source: Path, *, data: Path | None = None, timesteps: int | None = None, device: str = "auto"
) -> Evaluation:
    """Measure the trained network of a run, or a deployed one, at its own or another number of timesteps."""
    source, where = shipped.find(source), choose_device(device)
    network: nn.Module
    if source.is_dir():
        recipe, network = Run(source).recipe(), load_network(source)
        dtype = DTYPES.get(recipe.precision, torch.float32)
    else:
        deployed = open_file(source)
        if not isinstance(deployed, Network):
            raise ValueError(f"{source} keeps its spikes to itself; evaluate the run it came from")
        recipe, network, dtype = replace(recipe_of(deployed), precision="fp32"), deployed, input_dtype(deployed)
    if timesteps is not None:
        recipe = replace(recipe, timesteps=timesteps, short_epochs=0)
    return evaluate(network.to(where, dtype), Feed(load_data(recipe, data), recipe, where, dtype), recipe)
