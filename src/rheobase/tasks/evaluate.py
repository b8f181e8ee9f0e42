"""Measure a trained or deployed network on its test images."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from rheobase import plugins
from rheobase.data import Dataset
from rheobase.data.feed import Feed
from rheobase.deploy.quantize import Tell, silent
from rheobase.tasks.open import about, as_run, input_dtype, open_run, open_with_spikes, ready
from rheobase.train import Evaluation, choose_device, evaluate
from rheobase.train.runs import Run, load_network, open_data
from rheobase.train.step import DTYPES, for_device


def evaluate_run(
    source: Path | str | Run,
    *,
    data: Path | str | None = None,
    timesteps: int | None = None,
    device: str | torch.device = "auto",
    tell: Tell = silent,
) -> Evaluation:
    """Measure the trained network of a run, or a deployed one, at its own or another number of timesteps.

    `tell` is called after each batch, with the numbers of images that are done and of all.
    """
    where, found = choose_device(device), source if isinstance(source, Run) else open_run(Path(source))
    data = None if data is None else Path(data)
    network: nn.Module
    loader: Dataset | plugins.Part
    owner: Run | Path
    if isinstance(found, Run):
        recipe, record, owner, data = for_device(found.recipe, where), found.data, found, found.data_path(data)
        loader, loss = found.parts.data, found.parts.loss
        network, dtype = load_network(found), DTYPES.get(recipe.precision, torch.float32)
    else:
        deployed = open_with_spikes(found, source)
        stated, owner = about(deployed, found), found
        recipe, record = as_run(stated.recipe, deployed, where), stated.data
        network, dtype = deployed, input_dtype(deployed)
        loader, loss = plugins.dataset.get(recipe.data), plugins.loss.get(recipe.loss)
    if timesteps is not None:
        recipe = replace(recipe, timesteps=timesteps, short_epochs=0)
    dataset = open_data(recipe, record, data, owner, loader=loader)
    feed = Feed(dataset, recipe, where, dtype, tell=tell)
    return evaluate(ready(network, recipe, where, dtype), feed, recipe, loss=loss, captured=True)
