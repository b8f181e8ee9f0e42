"""The networks of the paper, and some small ones: one function each.

Layouts follow Table 4. A convolution before a soma needs no bias, because tdBN has one.
"""

from typing import Any

from rheobase.models.blocks import BasicBlock, Block, Bottleneck, GlobalHead, PlainBlock, PooledHead
from rheobase.models.spiking_net import SpikingNet, Stage
from rheobase.nn import Conv2d
from rheobase.plugins import network

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def stem(in_channels: int, channels: int, kernel: int = 3, stride: int = 1) -> Conv2d:
    """Return the first convolution of a network, padded to keep the image size at stride 1."""
    return Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, bias=False)


def for_imagenet(block: Block, depth: int, in_channels: int, channels: int = 64, **options: Any) -> SpikingNet:
    """Build a network in the layout of the paper's ResNet-34: strides instead of max pooling."""
    stages: list[Stage] = [(block, channels * 2**i, count, 2) for i, count in enumerate(DEPTHS[depth])]
    return SpikingNet(stem=stem(in_channels, channels, kernel=7, stride=2), stages=stages, head=GlobalHead, **options)


def for_cifar(block: Block, in_channels: int, **options: Any) -> SpikingNet:
    """Build a network in the layout of the paper's ResNet-19."""
    stages: list[Stage] = [(block, 128, 3, 1), (block, 256, 3, 2), (block, 512, 2, 2)]
    return SpikingNet(stem=stem(in_channels, 128), stages=stages, head=PooledHead, **options)


@network
def resnet17(num_classes: int = 11, in_channels: int = 2, image_size: int = 32, **options: Any) -> SpikingNet:
    """For DVS-Gesture: 64 and 128 channels."""
    return SpikingNet(
        stem=stem(in_channels, 64),
        stages=[(BasicBlock, 64, 3, 2), (BasicBlock, 128, 4, 2)],
        head=PooledHead,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


@network
def resnet19(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> SpikingNet:
    """For CIFAR-10 and DVS-CIFAR10: 128, 256 and 512 channels."""
    return for_cifar(BasicBlock, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def resnet34(
    num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, *, channels: int = 64, **options: Any
) -> SpikingNet:
    """For ImageNet: `channels` in the first stage, doubled in each of the next three."""
    options |= {"num_classes": num_classes, "image_size": image_size}
    return for_imagenet(BasicBlock, 34, in_channels, channels, **options)


@network
def resnet34_large(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """ResNet-34 with twice the width."""
    return resnet34(num_classes, in_channels, image_size, channels=128, **options)


@network
def resnet50(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """For ImageNet, with bottleneck blocks."""
    return for_imagenet(Bottleneck, 50, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def plain20(
    num_classes: int = 10, in_channels: int = 3, image_size: int = 32, *, channels: int = 64, **options: Any
) -> SpikingNet:
    """The network without shortcuts from Fig. 2: 18 convolutions of the same width at full resolution."""
    return SpikingNet(
        stem=stem(in_channels, channels),
        stages=[(PlainBlock, channels, 17, 1)],
        head=PooledHead,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


@network
def resnet8(num_classes: int = 10, in_channels: int = 1, image_size: int = 8, **options: Any) -> SpikingNet:
    """Small, for demos and tests: 16, 32 and 64 channels."""
    return SpikingNet(
        stem=stem(in_channels, 16),
        stages=[(BasicBlock, 16, 1, 1), (BasicBlock, 32, 1, 2), (BasicBlock, 64, 1, 2)],
        head=GlobalHead,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )


@network
def plain5(num_classes: int = 10, in_channels: int = 2, image_size: int = 34, **options: Any) -> SpikingNet:
    """Small, for event cameras with few pixels: 32, 64 and 64 channels without shortcuts, and a hidden layer."""
    return SpikingNet(
        stem=stem(in_channels, 32, stride=2),
        stages=[(PlainBlock, 64, 1, 2), (PlainBlock, 64, 1, 1)],
        head=PooledHead,
        num_classes=num_classes,
        image_size=image_size,
        **options,
    )
