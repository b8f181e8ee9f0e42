"""Measure a trained or deployed network on its test images."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from rheobase.data.feed import Feed
from rheobase.deploy import shipped
from rheobase.deploy.network import Network
from rheobase.tasks.open import about, input_dtype, open_file
from rheobase.train import Evaluation, choose_device, evaluate
from rheobase.train.runs import Run, load_network, open_data
from rheobase.train.step import DTYPES


def evaluate_run(
    source: Path, *, data: Path | None = None, timesteps: int | None = None, device: str = "auto"
) -> Evaluation:
    """Measure the trained network of a run, or a deployed one, at its own or another number of timesteps."""
    source, where = shipped.find(source), choose_device(device)
    network: nn.Module
    if source.is_dir():
        recipe, record, network = Run(source).recipe(), Run(source).data(), load_network(source)
        dtype = DTYPES.get(recipe.precision, torch.float32)
    else:
        deployed = open_file(source)
        if not isinstance(deployed, Network):
            raise ValueError(f"{source} keeps its spikes to itself; evaluate the run it came from")
        stated = about(deployed, source)
        recipe, record = replace(stated.recipe, precision="fp32"), stated.data
        network, dtype = deployed, input_dtype(deployed)
    if timesteps is not None:
        recipe = replace(recipe, timesteps=timesteps, short_epochs=0)
    dataset = open_data(recipe, record, data, source)
    return evaluate(network.to(where, dtype), Feed(dataset, recipe, where, dtype), recipe)
