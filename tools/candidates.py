"""Parts on trial, to be compared on held-out images before any of them becomes a part of the package.

    rheobase train cifar10_resnet19_fast --plugin tools/candidates.py --set holdout=5000 --set loss=agreeing

Both are for training alone: the trained network is an ordinary one.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.functional import readout
from rheobase.models import build
from rheobase.nn import as_sequence
from rheobase.plugins import loss, network
from rheobase.recipes import Recipe
from rheobase.train.losses import steps

_side: dict[str, list[Tensor]] = {}  # from the network to the loss: the outputs of the side branches in this step


def distance(learner: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the KL divergence of two sets of logits [N, K]; only the learner gets a gradient."""
    own, other = ((logits / temperature).log_softmax(1) for logits in (learner, teacher.detach()))
    return temperature**2 * F.kl_div(own, other, log_target=True, reduction="batchmean")


@loss
def agreeing(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """`steps`, and the least confident timestep of the batch also learns from the most confident one."""
    confidence = logits.detach().softmax(2).amax(2).mean(1)
    order = confidence.argsort()
    least, most = (logits.index_select(0, order[end]).squeeze(0) for end in (slice(0, 1), slice(-1, None)))
    return steps(logits, labels, recipe) + distance(least, most, temperature=2)


@loss
def branching(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """`steps`, also for side branches, which learn from the output of the network besides."""
    total = steps(logits, labels, recipe)
    for own in _side.pop("logits", []):  # none in an evaluation
        total = total + F.cross_entropy(own, labels, label_smoothing=recipe.label_smoothing)
        total = total + 0.3 * distance(own, readout(logits), temperature=3)
    return total


class SideBranch(nn.Module):
    """Separable convolutions with ReLU, which classify the firing rates [N, C, H, W] of a block."""

    def __init__(self, channels: int, num_classes: int, halvings: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(halvings):
            layers += [
                nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=False),
                nn.Conv2d(channels, 2 * channels, 1, bias=False),
                nn.BatchNorm2d(2 * channels),
                nn.ReLU(inplace=True),
            ]
            channels *= 2
        self.layers, self.decode = nn.Sequential(*layers), nn.Linear(channels, num_classes)

    def forward(self, rates: Tensor) -> Tensor:
        return self.decode(self.layers(rates).mean((-2, -1)))


class Branched(nn.Module):
    """A network with side branches behind some of its blocks, numbered from 1. In evaluation they do nothing."""

    def __init__(self, trunk: nn.Module, branches: dict[int, SideBranch]) -> None:
        super().__init__()
        self.trunk = trunk
        self.branches = nn.ModuleDict({str(number): branch for number, branch in branches.items()})

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        s = self.trunk.soma(self.trunk.stem(as_sequence(x, timesteps)))
        side = []
        for number, block in enumerate(self.trunk.body, 1):
            s = block(s)
            if self.training and str(number) in self.branches:
                side.append(self.branches[str(number)](s.mean(0)).float())
        if side:
            _side["logits"] = side
        return self.trunk.head(s)


@network
def branched_resnet19(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> Branched:
    """ResNet-19 with side branches after the first two of its three stages."""
    trunk = build("resnet19", num_classes=num_classes, in_channels=in_channels, image_size=image_size, **options)
    return Branched(trunk, {3: SideBranch(128, num_classes, 2), 6: SideBranch(256, num_classes, 1)})
