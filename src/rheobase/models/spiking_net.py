"""A whole network: stem, stages of blocks, head."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor, nn

from rheobase.models.blocks import Block, GlobalHead, Head, MSBlock, SomaFactory
from rheobase.nn import Conv2d, Soma, TdBN, as_sequence

Stage = tuple[Block, int, int, int]


class SpikingNet(nn.Module):
    """A whole network, built from a stem convolution, stages of blocks and a head.

    `stages` lists (block class, channels, number of blocks, stride of the first block). With a `GlobalHead`, an image
    may have any size from the total stride up. Otherwise the hidden layers fix the size. `soma` makes the somas with
    the settings of the `neuron` (decay, v_th and so on). All networks take both as `options`.
    """

    def __init__(
        self,
        *,
        stem: Conv2d,
        stages: Sequence[Stage],
        head: Head,
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
        self.min_size = prod(strides) * head.least_size
        self.exact_size = None if head is GlobalHead else image_size
        if image_size < self.min_size:
            raise ValueError(f"image_size {image_size} is too small for the strides: expected at least {self.min_size}")
        self.carries_currents = any(issubclass(block, MSBlock) for block, *_ in stages)
        self.stem = stem
        if not self.carries_currents:
            self.soma = soma(stem.out_channels)
        channels, size, blocks = stem.out_channels, _after(image_size, stem.stride[0]), []
        for block, width, count, stride in stages:
            for i in range(count):
                blocks.append(block(channels, width, stride if i == 0 else 1, soma))
                channels = block.expansion * width
            size = _after(size, stride)
        self.body = nn.Sequential(*blocks)
        if self.carries_currents:
            self.soma = soma(channels, normalize=False)
            self.norm = TdBN(stem.out_channels, v_th=self.soma.v_th)
        self.head = head(channels, size, num_classes, soma)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Return logits [T, N, K] for images [N, C, H, W] shown for `timesteps`, or a sequence [T, N, C, H, W]."""
        x = as_sequence(x, timesteps, channels=self.stem.in_channels, size=self.exact_size, least_size=self.min_size)
        if self.carries_currents:
            return self.head(self.soma(self.body(self.norm(self.stem(x)))))
        return self.head(self.body(self.soma(self.stem(x))))


def _after(size: int, stride: int) -> int:
    """Return the size of a feature map after a convolution with odd kernel k, padding k // 2 and this stride."""
    return (size - 1) // stride + 1
