"""ImageNet recipes: the rows of the paper's table."""

from rheobase.plugins import recipe
from rheobase.recipes.recipe import Recipe


def _imagenet(network: str, batch_size: int, step_epochs: int) -> Recipe:
    return Recipe(
        name=f"imagenet_{network}",
        data="imagenet",
        network=network,
        timesteps=6,
        epochs=3 * step_epochs,
        batch_size=batch_size,
        weight_decay=1e-4,
        step_epochs=step_epochs,
        image_size=224,
        flip=True,
        precision="bf16",
    )


@recipe
def imagenet_resnet34() -> Recipe:
    """Paper: 63.72 %, 8 GPUs with 24 images each. Ours: 105 epochs, weight decay 1e-4."""
    return _imagenet("resnet34", 8 * 24, 35)


@recipe
def imagenet_resnet34_large() -> Recipe:
    """Paper: 67.05 %, 8 GPUs with 10 images each. Ours: 105 epochs, weight decay 1e-4."""
    return _imagenet("resnet34_large", 8 * 10, 35)


@recipe
def imagenet_resnet50() -> Recipe:
    """Paper: 64.88 %, 8 GPUs with 10 images each. Ours: 135 epochs, weight decay 1e-4."""
    return _imagenet("resnet50", 8 * 10, 45)
