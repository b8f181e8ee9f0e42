"""Write folded and quantised networks, and measure how well they agree with the trained network."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.data import Dataset
from rheobase.data.feed import first_images, preprocessed
from rheobase.deploy.agreement import Agreement, agreement, record
from rheobase.deploy.network import Network
from rheobase.deploy.quantize import Tell, quantize, silent
from rheobase.recipes import Recipe
from rheobase.tasks.open import about, open_dataset
from rheobase.train.runs import Run
from rheobase.train.switches import cudnn

__all__ = ["quantized", "write"]

CALIBRATION_IMAGES, SAMPLE_IMAGES = 256, 64

CPU = torch.device("cpu")


def write(
    network: Network,
    target: Path,
    module: Any,
    source: Run | Path,
    *,
    bits: int | None,
    data: Path | None,
    device: torch.device = CPU,
    tell: Tell = silent,
    **options: Any,
) -> None:
    """Write the folded network of `source` to `target` with the `module` of its format.

    If a number of `bits` is given, quantise its weights to that many first, on `device`.
    """
    stated = about(network, source)
    if bits is not None:
        network = quantized(network, open_dataset(source, stated, data), stated.recipe, device, tell, bits=bits)
    module.write(network, target, stated.data.shape, **options)


def quantized(
    network: Network,
    dataset: Dataset,
    recipe: Recipe,
    device: torch.device = CPU,
    tell: Tell = silent,
    *,
    bits: int = 8,
) -> Network:
    """Return the quantised network, on the CPU. It is calibrated with training images on `device`."""
    images = calibration_images(dataset, recipe)
    with cudnn(allow_tf32=False):
        return quantize(copy.deepcopy(network).to(device), images, recipe.timesteps, tell, bits=bits).cpu()


def calibration_images(dataset: Dataset, recipe: Recipe) -> Tensor:
    """Return training images as the network sees them in evaluation, without augmentation and labels."""
    n = len(dataset.train)
    index = torch.arange(min(CALIBRATION_IMAGES, n)) * n // min(CALIBRATION_IMAGES, n)  # spread over the whole set
    return preprocessed(dataset, recipe, dataset.train, index, torch.float64)[0]


def precisions(run: Run, data: Path | None, model: nn.Module, network: Network) -> dict[str, Agreement]:
    """Return, by precision, how well the folded network agrees with the trained one in float64 on test images."""
    recipe = run.recipe
    timesteps = recipe.timesteps
    x, _ = first_images(run.open_data(data), recipe, SAMPLE_IMAGES, torch.float64)
    expected = record(copy.deepcopy(model).double(), x, timesteps)
    return {
        str(dtype).removeprefix("torch."): agreement(
            expected, record(copy.deepcopy(network).to(dtype), x.to(dtype), timesteps)
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
