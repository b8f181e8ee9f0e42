"""Plugins: what is decorated stands on its shelf, and what is wrong with a plugin is one sentence."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rheobase import plugins
from rheobase.models import build
from rheobase.plugins import Shelf, load, network

GOOD = """
from rheobase.plugins import network

@network
def {name}(num_classes, in_channels, image_size, **soma):
    raise NotImplementedError
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def plugin(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_is_run_once_and_its_parts_are_there(tmp_path: Path) -> None:
    source = plugin(tmp_path, "import helper, installed_one\n" + GOOD.format(name="tiny") + "helper.loads.append(1)")
    plugin(tmp_path, "loads = []", "helper.py")
    packages = tmp_path / ".venv" / "lib" / "site-packages"  # an environment in the folder of the plugin
    packages.mkdir(parents=True)
    plugin(packages, "", "installed_one.py")
    sys.path.append(str(packages))
    found = load(source)
    assert load(source) == found
    assert found.name == "mine.py"
    assert found.sources == {"mine.py": Path(source).read_bytes(), "helper.py": b"loads = []"}
    assert network.get("tiny").__name__ == "tiny"
    assert network.origins["tiny"] == found
    assert sys.modules["helper"].loads == [1]
    assert plugins.loaded() == [source]


def test_an_installed_module_is_a_plugin_with_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "spiking_parts"
    package.mkdir()
    plugin(package, "from spiking_parts import nets", "__init__.py")
    plugin(package, GOOD.format(name="inner"), "nets.py")
    monkeypatch.syspath_prepend(tmp_path)
    found = load("spiking_parts")
    assert set(found.sources) == {"__init__.py", "nets.py"}
    assert network.origins["inner"] == found  # the plugin that was named, not the file inside it


def test_a_module_that_the_program_has_imported_is_a_plugin_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path, GOOD.format(name="early"), "early_parts.py")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("early_parts")
    assert load("early_parts").name == "early_parts"


def test_a_changed_file_is_run_again(tmp_path: Path) -> None:
    first = load(plugin(tmp_path, GOOD.format(name="tiny")))
    second = load(plugin(tmp_path, GOOD.format(name="tiny") + "# changed"))
    assert first.sha256 != second.sha256
    assert network.origins["tiny"] == second


def test_the_same_function_may_be_defined_again_and_another_may_not() -> None:
    shelf = Shelf("network")

    def make(name: str) -> None:
        def part() -> None: ...

        part.__qualname__ = name
        shelf("tiny")(part)

    make("a")
    make("a")
    with pytest.raises(ValueError, match=r"^there is already a network named 'tiny'; choose another name$"):
        make("b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read this file (No such file or directory); check the path"),
        ("", "it registers nothing; decorate a function with @network, @loss or another decorator"),
        (
            "x = 1\nimport nowhere",
            "ModuleNotFoundError while loading: No module named 'nowhere' (line 2); fix the plugin",
        ),
        ("x = 1\ndef f(:", "SyntaxError while loading: invalid syntax (line 2); fix the plugin"),
        ("raise SystemExit(3)", "SystemExit while loading: 3 (line 1); fix the plugin"),
        (GOOD.format(name="resnet19"), "there is already a network named 'resnet19'; choose another name (line 4)"),
        (
            "from rheobase.plugins import network\n@network\ndef tiny(classes): ...",
            "the network 'tiny' cannot be called as tiny(num_classes=, in_channels=, image_size=, decay=, v_th=, "
            "width=): missing a required argument: 'classes'; change its parameters (line 2)",
        ),
        ("from rheobase.plugins import loss\nloss(3)", "@loss must decorate a function or class, got 3 (line 2)"),
    ],
)
def test_bad_plugins_get_one_sentence(text: str | None, message: str, tmp_path: Path) -> None:
    source = plugin(tmp_path, text) if text is not None else str(tmp_path / "mine.py")
    before = dict(network.parts)
    with pytest.raises(ValueError, match=f"^plugin {re.escape(source)}: {re.escape(message)}"):
        load(source)
    assert network.parts == before
    assert plugins.loaded() == []


def test_a_plugin_that_fails_leaves_none_of_its_parts(tmp_path: Path) -> None:
    source = plugin(tmp_path, GOOD.format(name="tiny") + "raise ValueError('late')")
    with pytest.raises(ValueError, match="late"):
        load(source)
    assert "tiny" not in network.parts


def test_a_module_that_is_not_installed() -> None:
    with pytest.raises(ValueError, match="neither a file nor an installed module; check"):
        load("no_such_module")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "network 'tiny': expected a torch.nn.Module, got int"),
        ("return torch.nn.Linear(2, 3)", "network 'tiny': forward must take (x, timesteps); begin it with"),
        ("return torch.nn.Linear(2)", "network 'tiny' cannot be built from decay: "),
    ],
)
def test_a_network_that_is_none_gets_one_sentence(body: str, message: str, tmp_path: Path) -> None:
    text = GOOD.format(name="tiny").replace("raise NotImplementedError", f"import torch\n    {body}")
    text = text.replace("num_classes, in_channels, image_size", "num_classes=1, in_channels=2, image_size=3")
    load(plugin(tmp_path, text))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        build("tiny", decay=0.5)


def test_a_part_of_ours_has_no_origin_and_one_written_here_has_this_file() -> None:
    assert plugins.origin(build) is None
    found = plugins.origin(test_a_module_that_is_not_installed)
    assert found is not None
    assert found.sources == {"test_plugins.py": Path(__file__).read_bytes()}
