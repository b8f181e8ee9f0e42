"""Losses by name: functions of logits [T, N, K] in float32 or float64, labels [N] and the recipe."""

import torch.nn.functional as F
from torch import Tensor

from rheobase.functional import readout
from rheobase.plugins import loss
from rheobase.recipes import Recipe


@loss
def mean(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Cross-entropy of the mean output (Eq. 11-13)."""
    return F.cross_entropy(readout(logits), labels, label_smoothing=recipe.label_smoothing)


@loss
def steps(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Mean cross-entropy over all timesteps (TET, Deng et al. 2022)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), label_smoothing=recipe.label_smoothing)
