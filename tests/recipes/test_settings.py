"""The settings of recipes: every one explained, changes marked."""

from dataclasses import fields

import pytest

from rheobase import recipes
from rheobase.recipes import Recipe
from rheobase.recipes.settings import as_text, differences, meanings, settings


def test_every_setting_has_a_meaning() -> None:
    found = meanings()
    assert [*found] == [field.name for field in fields(Recipe)]
    assert all(text.endswith(".") and "\n" not in text for text in found.values())
    assert found["batch_size"] == "Images per optimiser step, summed over all processes."


def test_what_a_recipe_changes_is_marked() -> None:
    found = {s.name: s for s in settings(recipes.get("demo"))}
    assert [*found] == [field.name for field in fields(Recipe) if field.name != "name"]
    stated = {"data", "network", "timesteps", "epochs", "batch_size"}
    changed = {"nesterov", "weight_decay", "schedule", "loss", "label_smoothing", "padding"}
    assert {name for name, s in found.items() if s.changed} == stated | changed
    assert {name for name, s in found.items() if s.default is None} == stated
    assert (found["padding"].value, found["padding"].default) == (1, 0)
    assert (found["schedule"].choices, found["loss"].choices) == (("step", "cosine"), ())


def test_settings_come_as_a_list() -> None:
    with pytest.raises(ValueError, match=r"^expected a list of settings, got 'epochs=3'; .*: \['epochs=3'\]$"):
        recipes.get("demo").changed("epochs=3")


def test_differences_name_both_values() -> None:
    demo = recipes.get("demo")
    assert differences(demo, demo) == {}
    assert differences(demo, demo.changed(["lr=0.3", "flip=true"])) == {"lr": (0.1, 0.3), "flip": (False, True)}


@pytest.mark.parametrize("setting", ["flip=true", "lr=0.0005", "loss=mean", "padding=3"])
def test_values_are_written_as_they_are_set(setting: str) -> None:
    name = setting.partition("=")[0]
    assert setting == f"{name}={as_text(getattr(recipes.get('demo').changed([setting]), name))}"
