"""The settings of a recipe, each with its meaning: the text that stands below its field in `Recipe`."""

import ast
from dataclasses import MISSING, dataclass, fields
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rheobase.recipes.recipe import Recipe


@dataclass(frozen=True)
class Setting:
    name: str
    value: Any
    default: Any
    """None where every recipe has to state it."""
    changed: bool
    """Whether the recipe differs from the default."""
    meaning: str
    choices: tuple[str, ...]
    """Empty where others than these are possible."""


def settings(recipe: Recipe) -> list[Setting]:
    """All settings of `recipe` but its name."""
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
    """The meaning of every setting: Python keeps no docstrings of fields, so they are read from the source."""
    (definition,) = ast.parse(getsource(Recipe)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = cleandoc(str(ast.literal_eval(text.value)))
    return found


def differences(recipe: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The settings in which two recipes differ, and both values."""
    pairs = {f.name: (getattr(recipe, f.name), getattr(other, f.name)) for f in fields(Recipe)}
    return {name: (one, two) for name, (one, two) in pairs.items() if one != two}


def as_text(value: Any) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
