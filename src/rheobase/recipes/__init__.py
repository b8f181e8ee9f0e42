"""`Recipe`, and all named recipes: one function each.

Settings that the paper does not state (number of epochs, weight decay, crop padding) are our choice, as the docstrings
say.
"""

from rheobase import plugins
from rheobase.recipes import basics, cifar10, cifar100, events, imagenet  # noqa: F401 (they register their recipes)
from rheobase.recipes.recipe import Recipe
from rheobase.recipes.settings import as_text, differences

__all__ = ["RECIPES", "Recipe", "get", "words"]

RECIPES = plugins.recipe.parts
"""All recipes by name: functions that return a `Recipe`."""


def get(name: str) -> Recipe:
    """Return the recipe with this name, built in or from a plugin."""
    found = plugins.recipe.get(name)()
    if not isinstance(found, Recipe):
        raise ValueError(f"the recipe '{name}' returns {type(found).__name__}; return a rheobase.recipes.Recipe")
    return found


def words(recipe: Recipe) -> list[str]:
    """Return the recipe as arguments of `rheobase train`: a name, and the settings that were changed."""
    base = recipe.name if recipe.name in RECIPES else "demo"  # one that was made in Python has no name to give
    changed = {key: value for key, (value, _) in differences(recipe, get(base)).items() if key != "name"}
    return [base, *(word for key, value in changed.items() for word in ("--set", f"{key}={as_text(value)}"))]
