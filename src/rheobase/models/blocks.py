"""Blocks and heads: what networks are made of, classes that take a factory of somas."""

from collections.abc import Callable

from torch import Tensor, nn

from rheobase.nn import AvgPool2d, Conv2d

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
