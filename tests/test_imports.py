"""Imports point one way: each part of the package uses only the parts below it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rheobase

ROOT = Path(rheobase.__file__).parent

# What each room may use beside itself: every room above it in this list, but for those named here.
ROOMS = (
    "extras", "files", "limits", "plugins", "functional", "kernels", "nn", "models", "recipes", "data", "deploy",
    "analysis", "convert", "train", "tasks", "report", "paper", "cli", "__main__",
)  # fmt: skip
STRANGERS: dict[str, set[str]] = {
    "functional": {"extras", "files", "limits", "plugins"},
    "kernels": {"files", "limits", "plugins"},
    "deploy": {"recipes"},
    "convert": {"recipes", "data"},
    "report": {*ROOMS} - {"extras", "files"},  # takes plain data
}


def may_import(importer: str, other: str) -> bool:
    below = ROOMS[: ROOMS.index(importer) + 1]
    return importer == other or (other in below and other not in STRANGERS.get(importer, ()))


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
        ("analysis", "train"),
        ("deploy", "train"),
        ("deploy", "convert"),
        ("convert", "train"),
        ("train", "tasks"),
        ("report", "models"),
        ("train", "cli"),
    ],
)
def test_up_is_forbidden(importer: str, other: str) -> None:
    assert not may_import(importer, other)


def test_every_room_is_in_order() -> None:
    assert {part(path) for path in files()} == {*ROOMS}


def test_rooms_are_imported_when_first_used() -> None:
    program = (
        "import rheobase, sys; assert 'torch' not in sys.modules; assert {'nn', 'train'} <= {*dir(rheobase)}; "
        "print(rheobase.train.fit.__name__, rheobase.nn.Soma.__name__, hasattr(rheobase, 'cellar'))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["fit", "Soma", "False"]
    assert {*rheobase.ROOMS} == {*ROOMS} - {"extras", "files", "limits", "paper", "cli", "__main__"}


def test_training_knows_neither_nir_nor_onnx() -> None:
    program = (
        "import rheobase.train, sys; print({'nir', 'onnx', 'onnxruntime', 'rheobase.deploy.formats'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


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
