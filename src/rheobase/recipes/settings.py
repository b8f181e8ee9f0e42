"""The settings of a recipe, each with its meaning: the text below its field in `Recipe`."""

import ast
from dataclasses import MISSING, dataclass, fields
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rheobase.recipes.recipe import Recipe


@dataclass(frozen=True)
class Setting:
    """One setting of a recipe: its value, its default and its meaning."""

    name: str
    value: Any
    default: Any
    """None if every recipe must state it."""
    changed: bool
    """Whether the recipe changes the default."""
    meaning: str
    choices: tuple[str, ...]
    """Empty if the values are not a fixed set."""


def settings(recipe: Recipe) -> list[Setting]:
    """Return all settings of `recipe` except its name."""
    kinds, known = get_type_hints(Recipe), meanings()
    found = []
    for field in fields(Recipe):
        if field.name == "name":
            continue
        value = getattr(recipe, field.name)
        default = None if field.default is MISSING else field.default
        kind = kinds[field.name]
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        found.append(Setting(field.name, value, default, value != default, known[field.name], choices))
    return found


@cache
def meanings() -> dict[str, str]:
    """Return the meaning of every setting. Python keeps no docstrings of fields, so they are read from the source."""
    (definition,) = ast.parse(getsource(Recipe)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = cleandoc(str(ast.literal_eval(text.value)))
    return found


def differences(recipe: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two recipes differ, with both values."""
    pairs = {f.name: (getattr(recipe, f.name), getattr(other, f.name)) for f in fields(Recipe)}
    return {name: (one, two) for name, (one, two) in pairs.items() if one != two}


def as_text(value: Any) -> str:
    """Return a value as text that `--set` accepts."""
    return str(value).lower() if isinstance(value, bool) else str(value)
