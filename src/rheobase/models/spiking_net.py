"""A whole network: stem, stages of blocks, head."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor, nn

from rheobase.models.blocks import BasicBlock, Bottleneck, GlobalHead, PlainBlock, PooledHead, SomaFactory
from rheobase.nn import Conv2d, Soma, as_sequence


class SpikingNet(nn.Module):
    """A whole network, built from a stem convolution, stages of blocks and a head.

    `stages` lists (block class, channels, number of blocks, stride of the first). With `global_pool` any image of at
    least the total stride is accepted; otherwise the hidden layer fixes the size. `soma` makes the somas, with the
    settings of the `neuron` (decay, v_th and so on). Both are the `options` of all networks.
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
        self.head = GlobalHead(channels, num_classes) if global_pool else PooledHead(channels, size, num_classes, soma)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Logits [T, N, K] of images [N, C, H, W] shown for `timesteps` steps, or of a sequence [T, N, C, H, W]."""
        x = as_sequence(x, timesteps, channels=self.stem.in_channels, size=self.exact_size, least_size=self.min_size)
        return self.head(self.body(self.soma(self.stem(x))))


def _after(size: int, stride: int) -> int:
    """Size of a feature map after a convolution of odd kernel k, padding k // 2 and this stride."""
    return (size - 1) // stride + 1
