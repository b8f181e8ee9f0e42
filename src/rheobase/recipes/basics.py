"""Small recipes: the demo on the built-in digits, and your own images."""

from rheobase.plugins import recipe
from rheobase.recipes.recipe import Recipe


@recipe
def demo() -> Recipe:
    """A small residual network on the built-in digits. It trains in a minute on two cores."""
    return Recipe(
        name="demo",
        data="digits",
        network="resnet8",
        timesteps=4,
        epochs=20,
        batch_size=64,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        loss="steps",
        label_smoothing=0.1,
        padding=1,
    )


@recipe
def images_resnet19() -> Recipe:
    """Your own images: a folder (--data) with one sub-folder per class."""
    return Recipe(
        name="images_resnet19",
        data="folder",
        network="resnet19",
        timesteps=2,
        epochs=60,
        batch_size=128,
        image_size=32,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        loss="steps",
        padding=4,
        flip=True,
    )


@recipe
def images_resnet34() -> Recipe:
    """Your own photographs (about 10 000) at 224 pixels: a folder (--data) with one sub-folder per class.

    Every epoch sees another random part of each image, and the first half of the epochs runs at T = 1. The accuracy has
    not been measured yet.
    """
    return Recipe(
        name="images_resnet34",
        data="pictures",
        network="resnet34",
        timesteps=4,
        epochs=80,
        batch_size=64,
        image_size=224,
        decay=0.5,
        lr=0.1,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        warmup_epochs=5.0,
        loss="steps",
        label_smoothing=0.1,
        average=0.995,
        short_timesteps=1,
        short_epochs=40,
        flip=True,
        precision="bf16",
        evaluate_every=5,
    )
