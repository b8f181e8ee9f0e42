"""Networks to compare with the paper's, with other residual connections or none: one function each."""

from typing import Any

from rheobase.models.blocks import DenseHead, GlobalHead, MSBlock, PooledBlock, SEWBlock, SEWBottleneck
from rheobase.models.networks import for_cifar, for_imagenet, stem
from rheobase.models.spiking_net import SpikingNet, Stage
from rheobase.plugins import network


@network
def sew_resnet18(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """SEW-ResNet-18 (Fang et al. 2021), which adds spikes. For ImageNet."""
    return for_imagenet(SEWBlock, 18, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def sew_resnet34(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """SEW-ResNet-34, for ImageNet."""
    return for_imagenet(SEWBlock, 34, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def sew_resnet50(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """SEW-ResNet-50, for ImageNet, with bottleneck blocks."""
    return for_imagenet(SEWBottleneck, 50, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def sew_resnet19(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> SpikingNet:
    """The paper's ResNet-19 in SEW style: blocks add spikes."""
    return for_cifar(SEWBlock, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def ms_resnet18(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """MS-ResNet-18 (Hu et al. 2021), which adds currents. For ImageNet."""
    return for_imagenet(MSBlock, 18, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def ms_resnet34(num_classes: int = 1000, in_channels: int = 3, image_size: int = 224, **options: Any) -> SpikingNet:
    """MS-ResNet-34, for ImageNet."""
    return for_imagenet(MSBlock, 34, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def ms_resnet19(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> SpikingNet:
    """The paper's ResNet-19 in MS style: blocks add currents."""
    return for_cifar(MSBlock, in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def vgg11(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> SpikingNet:
    """Eight convolutions with average pools and one decoding layer, for images of 32 pixels."""
    return _vgg((0, 1, 2, 2, 2), in_channels, num_classes=num_classes, image_size=image_size, **options)


@network
def vgg16(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> SpikingNet:
    """Thirteen convolutions with average pools and one decoding layer, for images of 32 pixels."""
    return _vgg((1, 2, 3, 3, 3), in_channels, num_classes=num_classes, image_size=image_size, **options)


def _vgg(counts: tuple[int, ...], in_channels: int, **options: Any) -> SpikingNet:
    """Build a VGG. `counts` are the numbers of convolutions at 32, 16, 8, 4 and 2 pixels, without the first one."""
    sizes = zip((64, 128, 256, 512, 512), counts, (1, 2, 2, 2, 2), strict=True)
    stages: list[Stage] = [(PooledBlock, width, count, stride) for width, count, stride in sizes]
    return SpikingNet(stem=stem(in_channels, 64), stages=stages, head=GlobalHead, **options)


@network
def cifarnet(num_classes: int = 10, in_channels: int = 3, image_size: int = 32, **options: Any) -> SpikingNet:
    """Five convolutions and two hidden layers (Wu et al. 2019), a reference in Table 1."""
    stages: list[Stage] = [
        (PooledBlock, 256, 1, 1),
        (PooledBlock, 512, 1, 2),
        (PooledBlock, 1024, 1, 2),
        (PooledBlock, 512, 1, 1),
    ]
    options |= {"num_classes": num_classes, "image_size": image_size}
    return SpikingNet(stem=stem(in_channels, 128), stages=stages, head=DenseHead, **options)
