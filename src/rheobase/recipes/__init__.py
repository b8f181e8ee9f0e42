"""What a recipe is (`Recipe`), and those with a name: a function that returns one each, listed in `RECIPES`.

What the paper does not state (number of epochs, weight decay, padding of the crop) is ours, and the docstrings say so.
"""

from collections.abc import Callable

from rheobase.recipes import cifar10, events, imagenet, small
from rheobase.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "get"]

RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": small.demo,
    "cifar10_resnet19_t2": cifar10.cifar10_resnet19_t2,
    "cifar10_resnet19_t4": cifar10.cifar10_resnet19_t4,
    "cifar10_resnet19_t6": cifar10.cifar10_resnet19_t6,
    "cifar10_resnet19_t2_paper": cifar10.cifar10_resnet19_t2_paper,
    "cifar10_resnet19_fast": cifar10.cifar10_resnet19_fast,
    "cifar10_resnet19_best": cifar10.cifar10_resnet19_best,
    "imagenet_resnet34": imagenet.imagenet_resnet34,
    "imagenet_resnet34_large": imagenet.imagenet_resnet34_large,
    "imagenet_resnet50": imagenet.imagenet_resnet50,
    "images_resnet19": small.images_resnet19,
    "dvsgesture_resnet17": events.dvsgesture_resnet17,
    "dvscifar10_resnet19": events.dvscifar10_resnet19,
    "dvscifar10_simulated": events.dvscifar10_simulated,
    "nmnist": events.nmnist,
    "digits_dvs": events.digits_dvs,
}


def get(name: str) -> Recipe:
    """The recipe of that name in `RECIPES`."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe '{name}'; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]()
