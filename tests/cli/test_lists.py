"""What there is, for readers at narrow terminals and for programs."""

import json
from dataclasses import asdict, fields
from inspect import cleandoc
from typing import Any

import pytest

from rheobase import recipes
from rheobase.cli import common
from rheobase.models import MODELS
from rheobase.recipes import RECIPES, Recipe
from tests.cli.here import Here

PLUGIN = '''
from dataclasses import replace
from rheobase import recipes
from rheobase.plugins import recipe

@recipe
def mine():
    """My own recipe: the demo, with another decay and a sentence that is far too long for a single line at 60 columns.

    Measured nowhere.
    """
    return replace(recipes.get("demo"), name="mine", decay=0.75)
'''


@pytest.fixture(params=[60, 80])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(common.console, "_width", request.param)
    return request.param


def document(here: Here, *arguments: str) -> Any:
    code, output, messages = here(*arguments, "--json")
    assert (code, messages) == (0, "")
    return json.loads(output, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def words(text: str) -> str:
    return " ".join(text.split())


def test_recipes_fit_and_nothing_is_cut_off(here: Here, width: int) -> None:
    _, output, _ = here("recipes")
    assert max(map(len, output.splitlines())) <= width
    for name, function in RECIPES.items():
        assert words(cleandoc(function.__doc__ or "").partition("\n\n")[0]) in words(output)
        r = recipes.get(name)
        assert words(f"{name} {r.network} on {r.data}, T = {r.timesteps}, {r.epochs} epochs") in words(output)


def test_models_fit_and_nothing_is_cut_off(here: Here, width: int) -> None:
    _, output, _ = here("models")
    assert max(map(len, output.splitlines())) <= width
    for name, function in MODELS.items():
        assert name in output
        assert words((function.__doc__ or "").splitlines()[0]) in words(output)


def test_one_recipe_shows_every_setting(here: Here, width: int) -> None:
    _, output, _ = here("recipes", "cifar10_resnet19_fast")
    assert max(map(len, output.splitlines())) <= width
    assert "…" not in output
    rows = {line[3:].split()[0]: line for line in output.splitlines() if line[:1] == " " and line[3:4].strip()}
    assert {field.name for field in fields(Recipe)} - {"name"} <= rows.keys()
    assert rows["decay"].split()[:4] == ["*", "decay", "0.5", "0.25"]
    assert rows["v_th"].split()[:3] == ["v_th", "0.5", "0.5"]
    assert "93.32 % after 116 s" in words(output)
    assert "…" not in here("recipes", "dvscifar10_simulated")[1]  # a long name leaves little room for the meanings


def test_recipes_of_plugins_are_shown_too(here: Here) -> None:
    (here.folder / "mine.py").write_text(PLUGIN)
    assert "mine" in here("recipes", "--plugin", "mine.py")[1]
    found = document(here, "recipes", "mine", "--plugin", "mine.py")
    assert found["description"].endswith("at 60 columns.\n\nMeasured nowhere.")
    (decay,) = (s for s in found["settings"] if s["name"] == "decay")
    assert (decay["value"], decay["default"], decay["changed"]) == (0.75, 0.25, True)


def test_an_unknown_recipe_is_one_sentence(here: Here) -> None:
    code, output, messages = here("recipes", "dmo")
    assert (code, output, messages.count("\n")) == (1, "", 1)
    assert "unknown recipe 'dmo' (did you mean 'demo'?); choose one of demo" in messages


def test_recipes_as_json(here: Here) -> None:
    found = {r["name"]: r for r in document(here, "recipes")["recipes"]}
    assert [*found] == [*RECIPES]
    assert found["demo"] == asdict(recipes.get("demo")) | {"description": RECIPES["demo"].__doc__}


def test_models_as_json(here: Here) -> None:
    found = {m["name"]: m for m in document(here, "models")["models"]}
    assert [*found] == [*MODELS]
    assert (found["resnet8"]["layers"], found["resnet8"]["shape"]) == (8, [1, 8, 8])
