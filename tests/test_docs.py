"""The documents hold: their Python runs, and what they name exists."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNNING = ("tutorials/network", "plugins", "training", "data", "neurons", "convert", "deploy")
ELSEWHERE = (".cuda()", "theirs.pt")  # blocks that need a GPU, or a checkpoint of others
DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
PAPER_MAP = (ROOT / "docs" / "paper-map.md").read_text()


@pytest.mark.parametrize(
    "document",
    ["README.md", "CONTRIBUTING.md", *(f"docs/{d}.md" for d in RUNNING)],
)
def test_python_blocks_run(
    document: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RHEOBASE_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {"__name__": document}
    for block in (block for block in blocks if not any(word in block for word in ELSEWHERE)):
        exec(compile(block, document, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "SECURITY.md", *DOCS])
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


FUNCTIONS = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)?\.[A-Za-z_0-9]+)`", PAPER_MAP))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_in_the_paper_map_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(import_module(f"rheobase.{module}"), attribute))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_/]+\.py::[a-z_0-9]+)`", PAPER_MAP))))
def test_test_in_the_paper_map_exists(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
