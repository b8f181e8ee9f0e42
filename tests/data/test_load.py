"""Loaders: ours on the shelf, users' own, and what each is called with."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rheobase import data, plugins
from rheobase.data import Dataset, Split, expected, expecting, load
from rheobase.data.eventset import EventDataset


def made_up(name: str, *shape: int, n: int = 6) -> Dataset:
    images = torch.arange(n).view(n, *(1 for _ in shape)).expand(n, *shape).to(torch.uint8)
    return Dataset.of(name, Split(images, torch.arange(n) % 3), Split(images[:3], torch.arange(3)), "abc")


def mine(path: Path) -> Dataset:
    return made_up(str(path), 2, 5, 5)


@expecting(classes=4, channels=3, size=7)
def resized(path: Path, size: int = 7, *, download: bool = False, colour: str = "none") -> Dataset:
    return made_up(f"{path} {download} {colour}", 3, size, size)


@expecting(classes="abc", channels=2, size=5, timesteps=6)
def recorded(path: Path, **options: Any) -> Dataset:
    return made_up(f"{path} {options}", 6, 2, 5, 5)


def test_a_loader_is_given_what_it_takes() -> None:
    assert load(mine, "folder", timesteps=8, download=True).info.name == "folder"
    assert load(resized).info.name == "data False none"
    assert load(resized).info.size == 7
    found = load(resized, "folder", size=8, timesteps=3, download=True, colour="red").info
    assert (found.name, found.size) == ("folder True red", 8)
    assert load(recorded, "folder", timesteps=4, speed=2).info.name == "folder {'speed': 2}"


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        (mine, {"speed": 2}, "dataset 'mine' has no option speed; it takes none"),
        (resized, {"speed": 2}, "dataset 'resized' has no option speed; it takes size, download, colour"),
        (mine, {"size": 8}, "dataset 'mine' has images of 5 x 5, not 8; leave out the size"),
        (recorded, {"timesteps": 7}, "dataset 'recorded' has recordings of 6 timesteps, not 7"),
        (lambda path: [path], {}, "the loader of dataset '<lambda>' returned a list, not a Dataset"),
    ],
)
def test_what_does_not_fit_is_one_sentence(loader: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(loader, **options)


def test_a_loader_on_the_shelf_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.dataset, "parts", dict(plugins.dataset.parts))
    monkeypatch.setattr(plugins.dataset, "origins", dict(plugins.dataset.origins))
    plugins.dataset("ours-too")(mine)
    assert load("ours-too", "folder").info.name == "folder"


def test_every_module_of_sets_puts_a_loader_on_the_shelf() -> None:
    modules = {path.stem for path in Path(data.sets.__path__[0]).glob("*.py")} - {"__init__"}
    assert {loader.__module__.rpartition(".")[2] for loader in plugins.dataset.parts.values()} >= modules


OURS = [name for name, origin in plugins.dataset.origins.items() if origin is None]


@pytest.mark.parametrize("name", OURS)
def test_what_ours_look_like_is_known_without_files(name: str) -> None:
    info = expected(name)
    assert info.name == name
    assert expected(name, timesteps=3).timesteps == (3 if info.timesteps else 0)


@pytest.mark.parametrize("name", ["digits", "digits-dvs"])
def test_what_was_expected_is_found(name: str) -> None:
    found, info = load(name), expected(name)
    assert isinstance(found, EventDataset) is bool(info.timesteps)
    for key in ("name", "classes", "channels", "size", "timesteps", "simulated"):
        assert getattr(found.info, key) == getattr(info, key)


def test_what_is_expected_of_a_loader_of_ones_own() -> None:
    assert expected(resized).classes == ("0", "1", "2", "3")
    assert expected(resized, size=11).shape == (3, 11, 11)
    assert expected(recorded, timesteps=2).timesteps == 2
    with pytest.raises(ValueError, match="dataset 'recorded' has images of 5 x 5, not 11"):
        expected(recorded, size=11)
    with pytest.raises(ValueError, match="the shape of dataset 'mine' is unknown without its files; give them"):
        expected(mine)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": "abd"}, "its data have other classes than its @expecting says: c instead of d"),
        ({"classes": "cab"}, "its data have other classes than its @expecting says: the same ones in another order"),
        ({"channels": 1}, "its @expecting says channels=1, but its data have channels=3"),
        ({"size": 9}, "its @expecting says size=9, but its data have size=7"),
        ({"timesteps": 4}, "its @expecting says recordings=True, but its data have recordings=False"),
    ],
)
def test_data_that_contradict_what_was_expected_are_refused(wrong: dict[str, Any], message: str) -> None:
    def loader(path: Path, size: int = 7) -> Dataset:
        return made_up("mine", 3, size, size)

    right: dict[str, Any] = {"classes": "abc", "channels": 3, "size": 7}
    assert load(expecting(**right)(loader), size=8).info.size == 8
    with pytest.raises(ValueError, match=f"^dataset 'loader': {re.escape(message)}; correct either$"):
        load(expecting(**right | wrong)(loader))


def test_a_loader_may_be_an_object_without_a_hash() -> None:
    @dataclass
    class Loader:
        size: int

        def __call__(self, path: Path) -> Dataset:
            return made_up("mine", 3, self.size, self.size)

    assert load(Loader(7)).info.size == 7


PROGRAM = """
import sys
from rheobase import plugins
for name in sys.argv[1:]:
    try:
        plugins.load(name)
    except ValueError as error:
        print(error)
print(plugins.dataset.origins.get("digits", "no digits"), "mine" in plugins.dataset.parts)
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("@dataset\ndef mine(path): ...", "None True"),
        ("@dataset\ndef mine(path): ...\n1 / 0", "None False"),
        ("", "None False"),
    ],
)
def test_our_data_sets_are_ours_though_a_plugin_imports_them_first(tmp_path: Path, end: str, said: str) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(f"import rheobase.data\nfrom rheobase.plugins import dataset\n{end}\n")
    found = subprocess.check_output([sys.executable, "-c", PROGRAM, str(plugin)], text=True)
    assert found.splitlines()[-1] == said
    assert (end == "") is ("it registers nothing" in found)
