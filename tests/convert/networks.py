"""ReLU networks with statistics and parameters like trained ones, shared by the tests of conversion."""

from typing import Any

import torch
from torch import Tensor, nn

from rheobase.models import BasicBlock, GlobalHead, SpikingNet
from rheobase.nn import Conv2d, ReluSoma, as_sequence, normalisations
from tests.deploy.networks import images


class Single(nn.Module):
    """One layer of ReLUs without normalisation, one weight each, and a decoding layer that passes them on."""

    def __init__(self, *weights: float, soma: type[ReluSoma] = ReluSoma, **settings: Any) -> None:
        super().__init__()
        n = len(weights)
        self.conv, self.decode = Conv2d(1, n, 1, bias=False), nn.Linear(n, n)
        self.soma = soma(n, normalize=False, **settings)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor(weights).view(n, 1, 1, 1))
            self.decode.weight.copy_(torch.eye(n))
            self.decode.bias.zero_()
        self.double()

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.decode(self.soma(self.conv(as_sequence(x, timesteps))).flatten(2))


def pixels(*values: float) -> Tensor:
    """Images of one pixel each."""
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


def relu_net(
    block: type[nn.Module] = BasicBlock, head: type[nn.Module] = GlobalHead, seed: int = 0, **neuron: Any
) -> SpikingNet:
    """Three blocks of one kind, the last of them with a stride, for images of 2 x 8 x 8, 5 classes."""
    torch.manual_seed(seed)
    model = SpikingNet(
        stem=Conv2d(2, 3, 3, padding=1, bias=False),
        stages=[(block, 3, 2, 1), (block, 6, 1, 2)],
        head=head,
        num_classes=5,
        image_size=8,
        **{"soma": ReluSoma, **neuron},
    )
    model = model.double().train().requires_grad_(False)
    norms = [norm for norm in normalisations(model) if getattr(norm, "normalize", True)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.7, 1.6).mul_(torch.randn_like(norm.weight).sign())
        nn.init.normal_(norm.bias, 0, 0.15)
        norm.momentum = 1.0
    model(images(7, 2, 8, seed=11), 1)  # statistics as they are after training
    return model.eval()
