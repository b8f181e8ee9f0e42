"""The command line, for all tests of it."""

from pathlib import Path

import pytest

from tests.cli.here import Here


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Here:
    return Here(monkeypatch, capsys, tmp_path)
