"""A user's place: the plugin, a run of it, and the command line as a new process would run it."""

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rheobase import plugins
from rheobase.cli import main
from rheobase.cli.common import _plugins
from tests.story.plugin import PLUGIN, Command


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What a new process knows: our own parts. Call it for another new process."""
    ours = [(shelf, dict(shelf.parts), dict(shelf.origins)) for shelf in plugins.SHELVES]

    def forget() -> None:
        for shelf, parts, origins in ours:
            shelf.restore(parts, origins)
        monkeypatch.setattr(plugins, "_loaded", {})

    return forget


@pytest.fixture
def rheobase(
    fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run a command line as a new process would: exit code, standard output and errors."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*words: object) -> tuple[int, str, str]:
        fresh()
        monkeypatch.setattr(sys, "argv", ["rheobase", *map(str, words)])
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                main()
                code: int | str | None = 0
            except SystemExit as stop:
                code = stop.code
        out, err = capsys.readouterr()
        return int(code or 0), out, err

    yield run
    _plugins.clear()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mine.py and a run of its recipe, trained in a process of its own."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "rheobase", "train", "stripes_tiny", "--plugin", "mine.py", "--out", "run"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to work in."""
    shutil.copytree(trained, tmp_path / "user")
    monkeypatch.chdir(tmp_path / "user")
    return tmp_path / "user"
