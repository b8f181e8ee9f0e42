"""Recipes for event-camera recordings, real and simulated."""

from rheobase.plugins import recipe
from rheobase.recipes.recipe import Recipe


@recipe
def dvsgesture_resnet17() -> Recipe:
    """Paper: 96.87 %. Ours: 3000 epochs, weight decay 1e-4."""
    return Recipe(
        name="dvsgesture_resnet17",
        data="dvsgesture",
        network="resnet17",
        timesteps=40,
        epochs=3000,
        batch_size=40,
        weight_decay=1e-4,
        step_epochs=1000,
        precision="bf16",
    )


@recipe
def dvscifar10_resnet19() -> Recipe:
    """Paper: 67.8 %. Ours: 105 epochs, weight decay 1e-4."""
    return Recipe(
        name="dvscifar10_resnet19",
        data="dvscifar10",
        network="resnet19",
        timesteps=10,
        epochs=105,
        batch_size=36,
        weight_decay=1e-4,
        step_epochs=35,
        precision="bf16",
    )


@recipe
def nmnist() -> Recipe:
    """N-MNIST, or a part of it. 97.10 % +- 1.12 over five folds of 1100 recordings, each a few minutes on one core."""
    return Recipe(
        name="nmnist",
        data="nmnist",
        network="plain5",
        timesteps=6,
        epochs=16,
        batch_size=50,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        padding=2,
    )


@recipe
def digits_dvs() -> Recipe:
    """The built-in digits, seen by a simulated event camera. 95.54 % in a few minutes on one core, seed 0."""
    return Recipe(
        name="digits_dvs",
        data="digits-dvs",
        network="resnet8",
        timesteps=5,
        epochs=15,
        batch_size=64,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        loss="steps",
        label_smoothing=0.1,
        padding=1,
    )


@recipe
def dvscifar10_simulated() -> Recipe:
    """A simulated DVS-CIFAR10, made from the CIFAR-10 test images. 65.4 % in 139 s on one H200, seed 0."""
    return Recipe(
        name="dvscifar10_simulated",
        data="dvscifar10-simulated",
        network="resnet19",
        timesteps=10,
        epochs=20,
        batch_size=128,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        warmup_epochs=1.0,
        loss="steps",
        padding=4,
        flip=True,
        precision="bf16",
    )


@recipe
def events_resnet17() -> Recipe:
    """Your own recordings from any sensor: a folder (--data) with one sub-folder per class."""
    return Recipe(
        name="events_resnet17",
        data="recordings",
        network="resnet17",
        timesteps=16,
        epochs=60,
        batch_size=32,
        image_size=32,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        loss="steps",
        padding=2,
    )
