"""Tree ids are those that git itself computes."""

import shutil
from pathlib import Path

import pytest

from rheobase.train import sources
from rheobase.train.sources import tree_id
from tests.repository import commit, git, new_repository

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "checkout")


def committed(checkout: Path, folder: str) -> str:
    return git(checkout, "rev-parse", f"{commit(checkout)}:{folder}")


def test_what_git_says_of_this_package(checkout: Path) -> None:
    shutil.copyfile(ROOT / ".gitignore", checkout / ".gitignore")
    shutil.copyfile(ROOT / ".gitattributes", checkout / ".gitattributes")
    shutil.copytree(ROOT / "src", checkout / "src")
    assert tree_id(ROOT / "src") == committed(checkout, "src")


def test_order_modes_and_what_is_left_out(checkout: Path) -> None:
    (checkout / ".gitignore").write_text("__pycache__/\n*.egg-info/\n.mypy_cache/\n")
    folder = checkout / "src"
    for name in ("a/b.py", "a.py", "a-b/c.py", "a/c/d.py", "z/__pycache__/e.pyc", "x.egg-info/f", ".mypy_cache/g"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "empty").mkdir()
    (folder / "a.py").chmod(0o755)
    found = tree_id(folder)
    assert found == committed(checkout, "src")
    (folder / "a.py").chmod(0o644)
    assert tree_id(folder) == committed(checkout, "src") != found


def test_this_checkout_is_told_by_all_its_sources() -> None:
    assert sources.sources() == {name: tree_id(ROOT / name) for name in ("src", "benchmarks", "tools")}


def test_an_installed_package_is_told_by_its_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "rheobase"
    package.mkdir(parents=True)
    (package / "nn.py").write_text("pass\n")
    monkeypatch.setattr(sources, "_PACKAGE", package)
    assert sources.sources.__wrapped__() == {"src/rheobase": tree_id(package)}
