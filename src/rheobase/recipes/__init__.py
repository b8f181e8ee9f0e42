"""`Recipe`, and all named recipes: one function each.

Settings that the paper does not state (number of epochs, weight decay, crop padding) are our choice, and the docstrings
say so.
"""

from rheobase import plugins
from rheobase.recipes import basics, cifar10, events, imagenet  # noqa: F401 (they register their recipes)
from rheobase.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "get"]

RECIPES = plugins.recipe.parts
"""All recipes by name: functions that return a `Recipe`."""


def get(name: str) -> Recipe:
    """Return the recipe with this name, built in or from a plugin."""
    found = plugins.recipe.get(name)()
    if not isinstance(found, Recipe):
        raise ValueError(f"the recipe '{name}' returns {type(found).__name__}; return a rheobase.recipes.Recipe")
    return found
