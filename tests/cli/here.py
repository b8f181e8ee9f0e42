"""The command line in this process."""

import sys
import warnings
from pathlib import Path

import pytest

from rheobase import cli


class Here:
    """Runs the command line in this process, in an empty folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.monkeypatch, self.capsys, self.folder = monkeypatch, capsys, folder
        monkeypatch.chdir(folder)
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output, messages."""
        self.monkeypatch.setattr(sys, "argv", ["rheobase", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *self.capsys.readouterr()
