"""Networks with statistics and parameters like trained ones, shared by the tests of deployment."""

import torch
from torch import Tensor, nn

from rheobase.models import BasicBlock, Bottleneck, GlobalHead, PlainBlock, PooledHead, SpikingNet, build
from rheobase.nn import Conv2d, Soma, normalisations, somas

# Small versions of every network: (name, options, image size, timesteps), all dimensions different.
SMALL = [
    ("resnet8", {"num_classes": 7, "in_channels": 2}, 9, 4),
    ("plain5", {"num_classes": 6, "in_channels": 3, "image_size": 9}, 9, 4),
    ("plain20", {"num_classes": 5, "in_channels": 3, "image_size": 6, "channels": 8}, 6, 4),
    ("resnet17", {"num_classes": 5, "in_channels": 3, "image_size": 8}, 8, 4),
    ("resnet19", {"num_classes": 6, "in_channels": 3, "image_size": 8}, 8, 4),
    ("resnet34", {"num_classes": 6, "in_channels": 3, "image_size": 35, "channels": 8}, 35, 4),
    ("resnet34_large", {"num_classes": 6, "in_channels": 3, "image_size": 33}, 33, 2),
    ("resnet50", {"num_classes": 6, "in_channels": 3, "image_size": 33}, 33, 2),
]


def randomise(model: SpikingNet, size: int, seed: int = 0) -> SpikingNet:
    """Random lambda and beta, negative ones too, and running statistics that are random but let the input through."""
    torch.manual_seed(seed)
    model = model.double().train().requires_grad_(False)
    norms = [norm for norm in normalisations(model) if norm.normalize]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.7, 1.6).mul_(torch.randn_like(norm.weight).sign())
        nn.init.normal_(norm.bias, 0, 0.15)
        norm.momentum = 1.0
    for soma in somas(model).values():
        if soma.learn_decay != "none":
            nn.init.normal_(soma.decay_logit)
    model(images(5, model.stem.in_channels, size, seed=11), 3)  # statistics as they are after training
    for norm in norms:
        norm.running_mean.add_(0.2 * torch.randn_like(norm.running_mean) * norm.running_var.sqrt())
        norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.6, 1.5))
    return model.eval()


def trained_like(name: str, size: int, seed: int = 0, **options: object) -> SpikingNet:
    torch.manual_seed(seed)
    return randomise(build(name, **options), size, seed)


def tiny(seed: int = 0, *, global_pool: bool = False, decay: float = 0.25, v_th: float = 0.5) -> SpikingNet:
    """Every kind of block and shortcut, few channels, images of 2 x 7 x 7, 5 classes."""

    def soma(channels: int, branches: int = 1) -> Soma:
        return Soma(channels, branches, decay=decay, v_th=v_th)

    torch.manual_seed(seed)
    model = SpikingNet(
        stem=Conv2d(2, 4, 3, padding=1, bias=False),
        stages=[(BasicBlock, 4, 1, 1), (PlainBlock, 6, 1, 2), (BasicBlock, 8, 1, 1), (Bottleneck, 3, 1, 1)],
        head=GlobalHead if global_pool else PooledHead,
        num_classes=5,
        image_size=7,
        soma=soma,
    )
    return randomise(model, 7, seed)


def styled(block: type[nn.Module], head: type[nn.Module] = GlobalHead, seed: int = 0, **neuron: object) -> SpikingNet:
    """Three blocks of one kind, the last of them with a stride, for images of 2 x 8 x 8, 5 classes."""
    torch.manual_seed(seed)
    model = SpikingNet(
        stem=Conv2d(2, 3, 3, padding=1, bias=False),
        stages=[(block, 3, 2, 1), (block, 6, 1, 2)],
        head=head,
        num_classes=5,
        image_size=8,
        **neuron,
    )
    return randomise(model, 8, seed)


def images(n: int, channels: int, size: int, seed: int = 1) -> Tensor:
    return torch.randn(n, channels, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
