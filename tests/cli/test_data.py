"""`rheobase data` shows counts, rates and pictures."""

import sys
from pathlib import Path

import pytest
import torch

from rheobase import cli
from rheobase.report.shades import shaded


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rheobase", "data", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_recordings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "digits-dvs", "--samples", "1") == 0
    shown = capsys.readouterr().out
    assert "all" in shown
    assert "1438" in shown
    assert "359" in shown
    assert "simulated recordings as 5 x 2 x 16 x 16" in shown
    assert "events per second, test:" in shown
    assert "damage in the files: none" in shown


def test_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "digits", "--samples", "0") == 0
    assert "images of 1 x 8 x 8" in capsys.readouterr().out


def test_nothing_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr("warnings.showwarning", None, raising=False)
    assert run(monkeypatch, "dvsgesture", "--root", str(tmp_path)) == 1
    assert "no DVS-Gesture in" in capsys.readouterr().err


def test_a_picture_is_brightest_where_the_values_are() -> None:
    image = torch.zeros(16, 32)
    image[3, 7] = 5.0
    lines = shaded(image).split("\n")
    assert len(lines) == 16
    assert lines[3] == " " * 7 + "@"
    assert not "".join(lines[:3] + lines[4:]).strip()
