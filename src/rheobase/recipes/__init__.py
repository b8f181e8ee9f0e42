"""What a recipe is (`Recipe`), and those with a name: a function that returns one each.

What the paper does not state (number of epochs, weight decay, padding of the crop) is ours, and the docstrings say so.
"""

from rheobase import plugins
from rheobase.recipes import basics, cifar10, events, imagenet  # noqa: F401 (they register theirs)
from rheobase.recipes.recipe import Recipe
from rheobase.recipes.settings import as_text, differences

__all__ = ["RECIPES", "Recipe", "get", "words"]

RECIPES = plugins.recipe.parts
"""Every recipe by its name: a function that returns it."""


def get(name: str) -> Recipe:
    """The recipe of that name: ours, or one of a plugin."""
    found = plugins.recipe.get(name)()
    if not isinstance(found, Recipe):
        raise ValueError(f"the recipe '{name}' returns {type(found).__name__}; expected a rheobase.recipes.Recipe")
    return found


def words(recipe: Recipe) -> list[str]:
    """The recipe as `rheobase train` takes it: a name, and the settings that were changed."""
    base = recipe.name if recipe.name in RECIPES else "demo"  # one that was made in Python has no name to give
    changed = {key: value for key, (value, _) in differences(recipe, get(base)).items() if key != "name"}
    return [base, *(word for key, value in changed.items() for word in ("--set", f"{key}={as_text(value)}"))]
