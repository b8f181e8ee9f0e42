"""Networks: an encoding layer (stem), a body of blocks, a decoding head.

    image [N, C, H, W] or sequence [T, N, C, H, W] -> stem -> body -> head -> logits [T, N, K]

Every network is a small function over shared blocks. Nothing in a network stores T: train at one, run at another.
Layouts follow Table 4 of the paper; a convolution before a soma needs no bias, since tdBN has one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor, nn

from rheobase.nn import AvgPool2d, Conv2d, Soma, hold, set_memory

SomaFactory = Callable[..., nn.Module]  # called as soma(channels) or soma(channels, branches=2)


def _shortcut(in_channels: int, channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    return Conv2d(in_channels, channels, 1, stride, bias=False)


class PlainBlock(nn.Module):
    """conv3x3 - soma, no shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.soma = soma(channels)

    def forward(self, s: Tensor) -> Tensor:
        return self.soma(self.conv(s))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut that meet in a two-branch soma (Fig. 5b)."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.soma1 = soma(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut = _shortcut(in_channels, channels, stride)
        self.soma2 = soma(channels, branches=2)

    def forward(self, s: Tensor) -> Tensor:
        h = self.soma1(self.conv1(s))
        return self.soma2(self.conv2(h), self.shortcut(s))


class Bottleneck(nn.Module):
    """1x1 - 3x3 - 1x1 (four times as wide) and a shortcut; the stride sits in the 3x3 convolution."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = Conv2d(in_channels, channels, 1, bias=False)
        self.soma1 = soma(channels)
        self.conv2 = Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.soma2 = soma(channels)
        self.conv3 = Conv2d(channels, out_channels, 1, bias=False)
        self.shortcut = _shortcut(in_channels, out_channels, stride)
        self.soma3 = soma(out_channels, branches=2)

    def forward(self, s: Tensor) -> Tensor:
        h = self.soma2(self.conv2(self.soma1(self.conv1(s))))
        return self.soma3(self.conv3(h), self.shortcut(s))


class PooledHead(nn.Module):
    """2x2 average pool, a hidden layer of 256 neurons, fully connected decoding layer."""

    def __init__(self, channels: int, size: int, num_classes: int, soma: SomaFactory) -> None:
        super().__init__()
        self.pool = AvgPool2d(2)
        self.hidden = nn.Linear(channels * (size // 2) ** 2, 256, bias=False)
        self.soma = soma(256)
        self.decode = nn.Linear(256, num_classes)

    def forward(self, s: Tensor) -> Tensor:
        h = self.soma(self.hidden(self.pool(s).flatten(2)))
        return self.decode(h)


class GlobalHead(nn.Module):
    """Global average pool, fully connected decoding layer."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.decode = nn.Linear(channels, num_classes)

    def forward(self, s: Tensor) -> Tensor:
        return self.decode(s.mean((-2, -1)))


class SpikingNet(nn.Module):
    """A whole network, built from a stem convolution, stages of blocks and a head.

    `stages` lists (block class, channels, number of blocks, stride of the first). With `global_pool` any image of at
    least the total stride is accepted; otherwise the hidden layer fixes the size. `memory` chooses what the body keeps
    for the backward pass (see `nn.MEMORY`). `soma` makes the somas, with the settings of the `neuron` (decay, v_th and
    so on). These three are the `options` of all networks below.
    """

    def __init__(
        self,
        *,
        stem: Conv2d,
        stages: Sequence[tuple[type[PlainBlock] | type[BasicBlock] | type[Bottleneck], int, int, int]],
        global_pool: bool,
        num_classes: int,
        image_size: int,
        soma: SomaFactory = Soma,
        memory: str = "speed",
        **neuron: Any,
    ) -> None:
        super().__init__()
        soma = partial(soma, **neuron)
        if num_classes < 1:
            raise ValueError(f"expected at least one class, got num_classes={num_classes}")
        strides = [stem.stride[0], *(stride for _, _, _, stride in stages)]
        self.min_size = prod(strides) * (1 if global_pool else 2)
        self.exact_size = None if global_pool else image_size
        if image_size < self.min_size:
            raise ValueError(f"image_size {image_size} is too small for the strides: expected at least {self.min_size}")
        self.stem = stem
        self.soma = soma(stem.out_channels)
        channels, size, blocks = stem.out_channels, _after(image_size, stem.stride[0]), []
        for block, width, count, stride in stages:
            for i in range(count):
                blocks.append(block(channels, width, stride if i == 0 else 1, soma))
                channels = block.expansion * width
            size = _after(size, stride)
        self.body = nn.Sequential(*blocks)
        set_memory(self.body, memory)
        self.head = GlobalHead(channels, num_classes) if global_pool else PooledHead(channels, size, num_classes, soma)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Logits [T, N, K] of images [N, C, H, W] shown for `timesteps` steps, or of a sequence [T, N, C, H, W]."""
        timesteps = self._check(x, timesteps)
        if x.ndim == 4:  # every step sees the same image: its convolution is computed once
            current = hold(self.stem(x[None]), timesteps)
        else:
            current = self.stem(x)
        return self.head(self.body(self.soma(current)))

    def _check(self, x: Tensor, timesteps: int | None) -> int:
        shape = list(x.shape)
        if x.ndim not in (4, 5):
            raise ValueError(f"expected images [N, C, H, W] or a sequence [T, N, C, H, W], got {shape}")
        if not x.is_floating_point():
            raise ValueError(f"expected floating-point input, got {x.dtype}; convert it with .float()")
        if 0 in shape:
            raise ValueError(f"expected at least one element in every dimension, got {shape}")
        if shape[-3] != self.stem.in_channels:
            raise ValueError(f"expected {self.stem.in_channels} channels, got {shape[-3]} in input {shape}")
        height, width = shape[-2:]
        if self.exact_size is not None and (height, width) != (self.exact_size, self.exact_size):
            raise ValueError(f"expected images of {self.exact_size} x {self.exact_size}, got {height} x {width}")
        if min(height, width) < self.min_size:
            raise ValueError(
                f"an image of {height} x {width} is too small for the strides: expected at least {self.min_size}"
            )
        if x.ndim == 5 and timesteps is not None and timesteps != shape[0]:
            raise ValueError(f"timesteps={timesteps} does not match the sequence, which has {shape[0]} steps")
        if x.ndim == 4 and (timesteps is None or timesteps < 1):
            raise ValueError(f"images need timesteps of at least 1, got {timesteps}; call model(x, timesteps=4)")
        return shape[0] if timesteps is None else timesteps


def _after(size: int, stride: int) -> int:
    """Size of a feature map after a convolution of odd kernel k, padding k // 2 and this stride."""
    return (size - 1) // stride + 1


def _stem(in_channels: int, channels: int, kernel: int = 3, stride: int = 1) -> Conv2d:
    return Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, bias=False)


def resnet17(
    num_classes: int = 11,
    in_channels: int = 2,
    image_size: int = 32,
    **options: Any,
) -> SpikingNet:
    """For DVS-Gesture: 64 and 128 channels."""
    return SpikingNet(
        stem=_stem(in_channels, 64),
        stages=[(BasicBlock, 64, 3, 2), (BasicBlock, 128, 4, 2)],
        global_pool=False,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


def resnet19(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    **options: Any,
) -> SpikingNet:
    """For CIFAR-10 and DVS-CIFAR10: 128, 256 and 512 channels."""
    return SpikingNet(
        stem=_stem(in_channels, 128),
        stages=[(BasicBlock, 128, 3, 1), (BasicBlock, 256, 3, 2), (BasicBlock, 512, 2, 2)],
        global_pool=False,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


def resnet34(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int = 224,
    *,
    channels: int = 64,
    **options: Any,
) -> SpikingNet:
    """For ImageNet: `channels` in the first stage, doubled in each of the three after it."""
    return SpikingNet(
        stem=_stem(in_channels, channels, kernel=7, stride=2),
        stages=[(BasicBlock, channels * 2**i, count, 2) for i, count in enumerate((3, 4, 6, 3))],
        global_pool=True,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


def resnet34_large(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int = 224,
    **options: Any,
) -> SpikingNet:
    """ResNet-34 of twice the width."""
    return resnet34(num_classes, in_channels, image_size, channels=128, **options)


def resnet50(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int = 224,
    **options: Any,
) -> SpikingNet:
    """For ImageNet, of bottleneck blocks."""
    return SpikingNet(
        stem=_stem(in_channels, 64, kernel=7, stride=2),
        stages=[(Bottleneck, 64 * 2**i, count, 2) for i, count in enumerate((3, 4, 6, 3))],
        global_pool=True,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


def plain20(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    *,
    channels: int = 64,
    **options: Any,
) -> SpikingNet:
    """The network without shortcuts of Fig. 2: 18 convolutions of one width at full resolution."""
    return SpikingNet(
        stem=_stem(in_channels, channels),
        stages=[(PlainBlock, channels, 17, 1)],
        global_pool=False,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


def resnet8(
    num_classes: int = 10,
    in_channels: int = 1,
    image_size: int = 8,
    **options: Any,
) -> SpikingNet:
    """Small, for demos and tests: 16, 32 and 64 channels."""
    return SpikingNet(
        stem=_stem(in_channels, 16),
        stages=[(BasicBlock, 16, 1, 1), (BasicBlock, 32, 1, 2), (BasicBlock, 64, 1, 2)],
        global_pool=True,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


def plain5(
    num_classes: int = 10,
    in_channels: int = 2,
    image_size: int = 34,
    **options: Any,
) -> SpikingNet:
    """Small, for event cameras of few pixels: 32, 64 and 64 channels without shortcuts, and a hidden layer."""
    return SpikingNet(
        stem=_stem(in_channels, 32, stride=2),
        stages=[(PlainBlock, 64, 1, 2), (PlainBlock, 64, 1, 1)],
        global_pool=False,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


MODELS: dict[str, Callable[..., SpikingNet]] = {
    "plain5": plain5,
    "plain20": plain20,
    "resnet8": resnet8,
    "resnet17": resnet17,
    "resnet19": resnet19,
    "resnet34": resnet34,
    "resnet34_large": resnet34_large,
    "resnet50": resnet50,
}


def build(name: str, **options: Any) -> SpikingNet:
    """The network of that name in `MODELS`."""
    if name not in MODELS:
        raise ValueError(f"unknown network '{name}'; choose one of {', '.join(MODELS)}")
    return MODELS[name](**options)
