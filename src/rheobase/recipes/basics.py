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
