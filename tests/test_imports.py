"""Imports point one way: each part of the package uses only the parts below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rheobase

ROOT = Path(rheobase.__file__).parent

# From bottom to top; parts that are not named here lie between the networks and the training.
CORE = ("functional", "kernels", "nn", "models")
TOP = ("train", "paper", "figures", "cli_common", "cli_data", "cli_analysis", "cli_deploy", "cli", "__main__")
# Of the parts between, these stay closer to the ground.
SITS_ON: dict[str, set[str]] = {
    "deploy": {*CORE, "files"},
    "analysis": {*CORE, "capture", "deploy"},  # operations are those of folded networks
    "report": set(),  # takes plain data
}


def may_import(importer: str, other: str) -> bool:
    if importer == other:
        return True
    if importer in SITS_ON:
        return other in SITS_ON[importer]
    if importer in CORE:
        return other in CORE[: CORE.index(importer)]
    return other not in TOP or (importer in TOP and other in TOP[: TOP.index(importer)])


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """Full names of what a module imports anywhere in it, also inside functions; `package` is where it lives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)


def own_imports(path: Path) -> set[str]:
    """The parts of this package that a file imports."""
    tree = ast.parse(path.read_text())
    package = [ROOT.name, *path.relative_to(ROOT).parts[:-1]]
    names = (name.split(".") for name in imported(tree, package))
    return {name[1] for name in names if len(name) > 1 and name[0] == ROOT.name and name[1] != "__version__"}


def files() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    up = [other for other in own_imports(path) if not may_import(part(path), other)]
    assert not up, f"{path.relative_to(ROOT)} imports {', '.join(sorted(up))}"


def test_no_circle() -> None:
    below: dict[str, set[str]] = {}
    for path in files():
        below.setdefault(part(path), set()).update(own_imports(path) - {part(path)})
    while below:
        free = [name for name, parts in below.items() if not parts & below.keys()]
        assert free, f"a circle among {', '.join(below)}"
        for name in free:
            del below[name]


@pytest.mark.parametrize(
    ("importer", "other"),
    [
        ("functional", "kernels"),
        ("kernels", "nn"),
        ("nn", "models"),
        ("models", "recipes"),
        ("models", "train"),
        ("data", "train"),
        ("recipes", "cli"),
        ("checkpoint", "train"),
        ("deploy", "data"),
        ("analysis", "train"),
        ("report", "models"),
        ("train", "cli"),
    ],
)
def test_up_is_forbidden_and_down_allowed(importer: str, other: str) -> None:
    assert not may_import(importer, other)
    assert may_import(other, importer) or importer in SITS_ON


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import rheobase.models", {"rheobase.models"}),
        ("from rheobase import models, nn", {"rheobase.models", "rheobase.nn"}),
        ("from rheobase.nn import Soma", {"rheobase.nn.Soma"}),
        ("def f():\n    from rheobase.train import fit", {"rheobase.train.fit"}),
        ("from . import triton", {"rheobase.kernels.triton"}),
        ("from ..models import build", {"rheobase.models.build"}),
        ("from .. import models", {"rheobase.models"}),
    ],
)
def test_every_way_to_import_is_seen(source: str, names: set[str]) -> None:
    assert set(imported(ast.parse(source), ["rheobase", "kernels"])) == names
