"""Fuzzing by coverage: what a process says is counted, and one that ends badly is a problem."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from attack import fuzz
from attack.report import Report
from rheobase.extras import installed

pytestmark = pytest.mark.slow

SAID = """
#131	NEW    cov: 151 ft: 232 corp: 21/63Kb lim: 16384 exec/s: 65 rss: 397Mb L: 2496/5252 MS: 1 EraseBytes-
#412	DONE   cov: 152 ft: 238 corp: 25/71Kb lim: 16384 exec/s: 45 rss: 401Mb
stat::number_of_executed_units: 412
"""


def test_inputs_and_problems_are_counted() -> None:
    report = Report(facts={"branches reached": {}})
    fuzz.note(report, "CSV", SAID)
    assert report.outcomes == {"CSV": Counter(inputs=412)}
    assert report.facts["branches reached"] == {"CSV": 152}
    assert report.problems == []
    fuzz.note(report, "NIR", f"{SAID}broken: traceback: KeyError: 'a'; its files are in x\n")
    assert report.outcomes["NIR"] == Counter(inputs=412, problems=1)
    assert report.problems == ["NIR: traceback: KeyError: 'a'; its files are in x"]


def test_a_process_that_dies_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "CHILD", "tests.attack.no_such_module")
    report = Report(facts={"branches reached": {}})
    fuzz.note(report, "CSV", fuzz.fuzz("CSV", 1, 0))
    assert report.outcomes == {"CSV": Counter(problems=1)}
    assert report.problems[0].startswith("CSV: crash: exit code 1: ")


def test_without_atheris_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fuzz, "installed", lambda package: package != "atheris")
    assert fuzz.attack(False, 0).as_dict()["problems"] == []
    assert "skipped: it needs the package atheris" in capsys.readouterr().out


@pytest.mark.skipif(not installed("atheris"), reason="needs atheris")
def test_a_reader_is_fuzzed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.chdir(tmp_path)
    report = fuzz.attack(False, 0, inputs=50, only=("CSV",))
    assert report.problems == []
    assert report.facts["inputs"] >= 50
    assert report.facts["branches reached"]["CSV"] > 50
