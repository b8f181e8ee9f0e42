"""Tests that need a GPU are run by make test-gpu: elsewhere they are skipped, and nobody would notice."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


def needing_a_gpu() -> Iterator[tuple[str, str]]:
    """Yield file and name of every test that is skipped without a GPU."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if "not torch.cuda.is_available()" in decorators or "needs_gpu" in decorators:
                    yield path.relative_to(TESTS.parent).as_posix(), node.name


def test_make_test_gpu_runs_them() -> None:
    recipe = re.search(r"^test-gpu:.*\n((?:\t.*\n)+)", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = recipe[1].replace("\\\n", " ").splitlines()
    found = list(needing_a_gpu())
    assert len(found) > 15
    for file, name in found:
        own = [line for line in commands if any(file.startswith(word) for word in line.split() if "tests/" in word)]
        assert own, f"{file} is not among them"
        assert any("-k gpu" not in line or "gpu" in name for line in own), f"-k gpu leaves out {name} in {file}"
