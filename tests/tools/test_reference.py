"""The reference is whole: every command, setting and public name, each with its meaning."""

from dataclasses import fields

from typer.main import get_command

from rheobase.cli import app
from rheobase.recipes import RECIPES, Recipe
from tools import reference


def test_no_public_name_is_without_a_docstring() -> None:
    assert [*reference.undocumented()] == []


def test_a_missing_docstring_is_seen() -> None:
    from rheobase import functional, kernels

    text, functional.lif.__doc__ = functional.lif.__doc__, None
    try:
        assert [*reference.undocumented()] == ["rheobase.functional.lif"]
    finally:
        functional.lif.__doc__ = text
    assert reference._has_text_below(kernels, "BACKENDS")
    assert not reference._has_text_below(kernels, "annotations")


def test_every_command_is_there_with_its_options() -> None:
    page, parsed = reference.commands(), get_command(app).commands
    assert reference.command_lines().keys() == parsed.keys()
    for name, parameters in reference.command_lines().items():
        assert f"\n## {name}\n" in page
        flags = {flag for p in parsed[name].params for flag in p.opts if flag.startswith("--")}
        assert {flag for p in parameters for flag in p.flags} == flags
        assert [p.name for p in parameters] == [p.name for p in parsed[name].params]
        assert all(p.meaning for p in parameters)
    assert "| `--form` | `canonical`, `portable` | `canonical` |" in page
    assert "| `--set` | KEY=VALUE |  |" in page
    assert "| `--from` | RUN, NAME, FILE |  |" in page
    assert "| `--seed` | whole number | `0` |" in page


def test_what_can_be_repeated_says_so() -> None:
    options = [p for parameters in reference.command_lines().values() for p in parameters if p.flags and p.several]
    assert options
    assert all(p.meaning.endswith("; repeatable.") for p in options)


def test_options_in_the_meaning_of_others_are_code() -> None:
    assert reference._meaning("Resume in --out; `train --data` reads --data.") == (
        "Resume in `--out`; `train --data` reads `--data`."
    )


def test_every_command_has_the_example_of_its_help() -> None:
    page, parsed = reference.commands(), get_command(app).commands
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    for name, section in sections.items():
        (example,) = [line for line in section.splitlines() if line.startswith(f"rheobase {name}")][1:]
        assert parsed[name].epilog == f"Example: {example}"
    assert "rheobase eval runs/demo-1 --timesteps 2" in sections["eval"]


def test_every_recipe_and_setting_is_there() -> None:
    recipes, settings = reference.recipes(), reference.all_settings()
    assert all(f"\n## {name}\n" in recipes for name in RECIPES)
    assert all(f"| `{field.name}` |" in settings for field in fields(Recipe) if field.name != "name")
    assert "| `decay` | number | `0.25` |" in settings
    assert "| `reset` | one of `hard`, `soft` | `hard` |" in settings
    assert "| `timesteps` | whole number |  |" in settings
