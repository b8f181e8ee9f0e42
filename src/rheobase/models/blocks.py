"""Blocks and heads, the parts of networks. Each class takes a factory of somas.

There are three styles of residual connections. In the paper's style, the currents of both branches meet in a soma. In
SEW networks (Fang et al. 2021), the spikes of both branches are added, so values of 2 and more are possible. In MS
networks (Hu et al. 2021), currents are added up from block to block, and neurons come before the convolutions.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from rheobase.nn import AvgPool2d, Conv2d, TdBN

SomaFactory = Callable[..., Any]
"""Makes the neurons of a layer: called as soma(channels), optionally with branches=2 or normalize=False."""


def _shortcut(in_channels: int, channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    return Conv2d(in_channels, channels, 1, stride, bias=False)


class PlainBlock(nn.Module):
    """A 3x3 convolution and a soma, without a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.soma = soma(channels)

    def forward(self, s: Tensor) -> Tensor:
        return self.soma(self.conv(s))


class PooledBlock(nn.Module):
    """A 3x3 convolution and a soma, after an average pool that replaces the stride."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        self.pool = nn.Identity() if stride == 1 else AvgPool2d(stride)
        self.conv = Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.soma = soma(channels)

    def forward(self, s: Tensor) -> Tensor:
        return self.soma(self.conv(self.pool(s)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which meet in a soma with two branches (Fig. 5b)."""

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
    """Convolutions 1x1, 3x3 and 1x1 (four times as wide) and a shortcut. The 3x3 convolution has the stride."""

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


class SEWBlock(nn.Module):
    """Two 3x3 convolutions with somas. Their spikes are added to those of the shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.soma1 = soma(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.soma2 = soma(channels)
        self.shortcut = _spiking_shortcut(in_channels, channels, stride, soma)

    def forward(self, s: Tensor) -> Tensor:
        return self.soma2(self.conv2(self.soma1(self.conv1(s)))) + self.shortcut(s)


class SEWBottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1 (four times as wide) with somas. Spikes are added to those of the shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = Conv2d(in_channels, channels, 1, bias=False)
        self.soma1 = soma(channels)
        self.conv2 = Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.soma2 = soma(channels)
        self.conv3 = Conv2d(channels, out_channels, 1, bias=False)
        self.soma3 = soma(out_channels)
        self.shortcut = _spiking_shortcut(in_channels, out_channels, stride, soma)

    def forward(self, s: Tensor) -> Tensor:
        h = self.soma2(self.conv2(self.soma1(self.conv1(s))))
        return self.soma3(self.conv3(h)) + self.shortcut(s)


def _spiking_shortcut(in_channels: int, channels: int, stride: int, soma: SomaFactory) -> nn.Module:
    synapse = _shortcut(in_channels, channels, stride)
    return synapse if isinstance(synapse, nn.Identity) else nn.Sequential(synapse, soma(channels))


class MSBlock(nn.Module):
    """Neurons, a 3x3 convolution, a soma and a 3x3 convolution. The resulting current is added to the incoming one.

    The second normalisation starts with a weight of 0, as in the authors' code, so a deep network starts out shallow.
    If the shape changes, the shortcut reads the spikes of the block. The authors' shortcut reads the current, which
    needs multiplications.
    """

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, soma: SomaFactory) -> None:
        super().__init__()
        self.neurons = soma(in_channels, normalize=False)
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.soma = soma(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = TdBN(channels, v_th=self.soma.v_th)
        nn.init.zeros_(self.norm.weight)
        synapse = _shortcut(in_channels, channels, stride)
        self.same_shape = isinstance(synapse, nn.Identity)
        self.shortcut = synapse if self.same_shape else nn.Sequential(synapse, TdBN(channels, v_th=self.soma.v_th))

    def forward(self, current: Tensor) -> Tensor:
        s = self.neurons(current)
        added = self.norm(self.conv2(self.soma(self.conv1(s))))
        return added + self.shortcut(current if self.same_shape else s)


class PooledHead(nn.Module):
    """A 2x2 average pool, a hidden layer of 256 neurons and a fully connected decoding layer."""

    least_size = 2

    def __init__(self, channels: int, size: int, num_classes: int, soma: SomaFactory) -> None:
        super().__init__()
        self.pool = AvgPool2d(2)
        self.hidden = nn.Linear(channels * (size // 2) ** 2, 256, bias=False)
        self.soma = soma(256)
        self.decode = nn.Linear(256, num_classes)

    def forward(self, s: Tensor) -> Tensor:
        h = self.soma(self.hidden(self.pool(s).flatten(2)))
        return self.decode(h)


class DenseHead(nn.Module):
    """Hidden layers of 1024 and 512 neurons and a fully connected decoding layer."""

    least_size = 1

    def __init__(self, channels: int, size: int, num_classes: int, soma: SomaFactory) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(channels * size**2, 1024, bias=False)
        self.soma1 = soma(1024)
        self.hidden2 = nn.Linear(1024, 512, bias=False)
        self.soma2 = soma(512)
        self.decode = nn.Linear(512, num_classes)

    def forward(self, s: Tensor) -> Tensor:
        h = self.soma1(self.hidden1(s.flatten(2)))
        return self.decode(self.soma2(self.hidden2(h)))


class GlobalHead(nn.Module):
    """A global average pool and a fully connected decoding layer, for images of any size."""

    least_size = 1

    def __init__(self, channels: int, size: int, num_classes: int, soma: SomaFactory) -> None:
        super().__init__()
        self.decode = nn.Linear(channels, num_classes)

    def forward(self, s: Tensor) -> Tensor:
        return self.decode(s.mean((-2, -1)))


Block = type[PlainBlock | PooledBlock | BasicBlock | Bottleneck | SEWBlock | SEWBottleneck | MSBlock]
Head = type[GlobalHead | PooledHead | DenseHead]
