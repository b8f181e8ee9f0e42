"""The parts that a recipe names, as objects: from the shelves of `plugins`, or passed in Python."""

from dataclasses import dataclass, replace
from typing import Any

from rheobase import plugins
from rheobase.data import Dataset
from rheobase.plugins import Part, Plugin
from rheobase.recipes import Recipe
from rheobase.train import losses, optimizers  # noqa: F401 (they register the built-in ones)

SHELVES = {
    "network": plugins.network,
    "neuron": plugins.neuron,
    "data": plugins.dataset,
    "loss": plugins.loss,
    "optimizer": plugins.optimizer,
}


@dataclass(frozen=True)
class Parts:
    """The parts of one recipe, under the names of its settings."""

    network: Part
    neuron: Part
    data: Dataset | Part
    loss: Part
    optimizer: Part

    @classmethod
    def of(cls, recipe: Recipe, **given: Any) -> "Parts":
        """Return the parts of `recipe`. Parts that are `given` replace those it names."""
        return cls(**{n: given.get(n) or shelf.get(getattr(recipe, n)) for n, shelf in SHELVES.items()})

    @classmethod
    def missing(cls, recipe: Recipe, **given: Any) -> list[str]:
        """Return the settings whose part is neither given nor on its shelf."""
        return [n for n, shelf in SHELVES.items() if not given.get(n) and getattr(recipe, n) not in shelf.parts]

    def origins(self) -> dict[str, Plugin]:
        """Return, by setting, where the parts come from that are not built in."""
        found = {}
        for name, shelf in SHELVES.items():
            part = getattr(self, name)
            on_shelf = next((shelf.origins[n] for n, p in shelf.parts.items() if p is part), None)
            origin = on_shelf or plugins.origin(part)
            if origin is not None:
                found[name] = origin
        return found


def named_after(recipe: Recipe, given: dict[str, Any]) -> Recipe:
    """Return the recipe with the names of the parts that are `given`."""
    names: dict[str, Any] = {setting: _name(setting, part) for setting, part in given.items()}
    return replace(recipe, **names)


def _name(setting: str, part: Any) -> str:
    name = part.info.name if isinstance(part, Dataset) else getattr(part, "__name__", "")
    if not name:
        raise ValueError(f"{setting}: expected a function or class with a name, got {part!r}; wrap it in a function")
    return name
