"""CIFAR-100 recipes: those for CIFAR-10, on 100 classes."""

from dataclasses import replace

from rheobase.plugins import recipe
from rheobase.recipes.cifar10 import cifar10_resnet19_best, cifar10_resnet19_t4
from rheobase.recipes.recipe import Recipe


@recipe
def cifar100_resnet19_t4() -> Recipe:
    """`cifar10_resnet19_t4` with a loss at every timestep. Its accuracy has not been measured yet."""
    return replace(cifar10_resnet19_t4(), name="cifar100_resnet19_t4", data="cifar100", loss="steps")


@recipe
def cifar100_resnet19_best() -> Recipe:
    """`cifar10_resnet19_best` on CIFAR-100. Its accuracy has not been measured yet."""
    return replace(cifar10_resnet19_best(), name="cifar100_resnet19_best", data="cifar100")
