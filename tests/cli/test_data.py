"""`rheobase data` shows counts, rates and pictures."""

import sys
from pathlib import Path

import pytest
import torch

from rheobase import cli
from rheobase.report.shades import bars, shaded


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


def test_a_long_name_of_a_class_hides_no_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, count in (("short", 13), ("long " * 20 + "name", 20)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.pgm").write_bytes(b"P5 1 1 255 " + bytes([number]))
    assert run(monkeypatch, "folder", "--root", str(tmp_path), "--size", "8", "--samples", "0") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["class", "training", "test"] in rows
    assert ["short", "11", "2"] in rows
    assert ["all", "27", "6"] in rows
    assert next(row[-2:] for row in rows if row[:2] == ["long", "long"]) == ["16", "4"]


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


def test_what_is_in_a_recording(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("warnings.showwarning", None, raising=False)
    monkeypatch.chdir(tmp_path)
    rows = [f"{t},{t % 7},{t % 5},{int(t % 4 == 0)}" for t in range(0, 40_000, 100)]
    Path("a.csv").write_text("\n".join([*rows[:200], *rows[350:], "45000,9,1,1", "oops"]))

    def told(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rheobase", "recording", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    code, out, err = told("a.csv", "--sensor", "7x5")
    assert (code, err) == (0, "")
    assert out.splitlines()[:6] == [
        "a.csv: 250 events in 0.040 s, sensor of 7 x 5",
        "  6266 events per second, 10025 in the busiest 1 % of the time",
        "  100.0 % brighter, 0.0 % darker",
        "  1 gap of 10 ms or more, the longest 15.1 ms at 0.020 s",
        "  damage: line 1, outside 1",
        "  1 event is outside the sensor: training would refuse this file",
    ]
    assert out.rstrip().splitlines()[-1].count(" ") == 18  # of fifty bars
    assert max(map(len, out.splitlines())) <= 80
    assert "  0 gaps of 20 ms or more\n" in told("a.csv", "--sensor", "7x5", "--gap", "20")[1]
    assert told("a.csv")[2].startswith("error: a.csv: the sensor size is missing; begin the file with a line such as")
    assert "or give it: --sensor 346x260 (train: --set sensor=346x260)\n" in told("a.csv")[2]
    assert told("a.csv", "--sensor", "seven")[2].startswith("error: sensor: expected width and height such as 346x260")
    assert told("a.csv", "--sensor", "7x5", "--out", "a.gif")[2] == (
        "error: a.gif: expected a file name that ends in .png or .svg\n"
    )
    Path("b.csv").write_text("300,1,2,0\n200,1,2,0\n400,9,2,0\n0.5,1,2,0\n")
    assert told("b.csv", "--sensor", "7x5")[1].splitlines()[:4] == [  # what little there is has a reason
        "b.csv: 1 event in 0.000 s, sensor of 7 x 5",
        "  damage: backwards 1, line 1, outside 1",
        "  1 event is outside the sensor: training would refuse this file",
        "  too few events to say more",
    ]
    code, out, err = told("a.csv", "none.csv", "--sensor", "7x5")
    assert (code, err) == (1, "error: 1 of 2 recordings could not be read; see the reasons above\n")
    assert "skipped: cannot read none.csv: No such file or directory; check the path\n" in out


def test_bars_are_as_high_as_their_values() -> None:
    assert bars([0.0, 0.001, 4.0, 8.0]) == " \u2581\u2584\u2588"
    assert bars([0.0, 0.0]) == "  "
