"""The attack sees what it is there to see: errors of other kinds, crashes, hangs, memory."""

import json
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from attack import files, mutations, worker
from attack.__main__ import main
from attack.report import Report
from attack.targets import Target, targets
from rheobase.train.sources import tree_id

pytestmark = pytest.mark.slow


def target(read: Any) -> Target:
    return Target("kind", lambda: {"a": b"abc"}, read)


def fails(error: BaseException) -> Any:
    def read(folder: Path) -> None:
        raise error

    return read


def test_outcomes_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases: list[tuple[Any, str]] = [
        (lambda _: None, "read"),
        (fails(ValueError(f"{tmp_path}/x: it is damaged")), "refused"),
        (fails(ValueError("file: it is damaged")), "refused"),
        (fails(OSError(2, "No such file", "file")), "refused"),
        (fails(ValueError("unknown neuron 'x'; choose one of lif")), "refused"),
        (fails(ValueError("lr: expected a number")), "refused"),
        (fails(ValueError("zip() argument 2 is longer")), "unnamed"),
        (fails(ValueError("file: one\ntwo")), "several lines"),
        (fails(KeyError("a")), "traceback"),
        (fails(RuntimeError("shapes")), "traceback"),
        (fails(MemoryError()), "traceback"),
    ]
    for read, outcome in cases:
        assert worker.attempt(target(read), tmp_path)[0].partition(":")[0] == outcome


def test_memory_is_seen(tmp_path: Path) -> None:
    outcome, grown, _ = worker.attempt(target(lambda _: np.ones(2**28, np.uint8).sum()), tmp_path)
    assert outcome == "read"
    assert 2**27 < grown < 2**29


def test_crashes_and_hangs_are_noted_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(files, "WORKER", "tests.attack.dying")
    monkeypatch.setattr(files, "PATIENCE", 1.0)
    report = Report()
    files._watch(tmp_path / "work" / "originals", 15, 3, report)
    assert report.outcomes == {"kind": Counter(refused=10, crash=3, hang=2)}
    assert len(report.problems) == 5
    assert "kind: crash: signal SIGABRT; its files are in runs/attack/3-9" in report.problems
    assert sorted(path.name for path in (tmp_path / "runs" / "attack").iterdir()) == [
        "3-13",
        "3-14",
        "3-4",
        "3-6",
        "3-9",
    ]
    assert report.facts == {"largest growth, MiB": 2}


def test_an_attack_that_is_stopped_reports_what_it_has_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(originals: Path, number: int, seed: int, report: Report) -> None:
        report.count("kind", "read")
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "targets", list)
    monkeypatch.setattr(files, "_watch", stopped)
    report = files.attack(True, 3)
    assert report.outcomes == {"kind": Counter(read=1)}
    assert report.facts["files"] == 1


def test_damage_is_the_same_for_the_same_seed_and_changes_something() -> None:
    content = json.dumps({"b": [1, {"c": "d"}], "a": 2.5}).encode() + b"\n"
    for mutation in (mutations.damaged, mutations.json_text):
        made = [mutation(content, Random(i)) for i in range(200)]
        assert made == [mutation(content, Random(i)) for i in range(200)]
        assert len(set(made)) > 60
        assert sum(found != content for found in made) > 150


def test_structure_stays_whole() -> None:
    """What is damaged on purpose inside a format passes its checksums."""
    known = {found.name: found for found in targets()}
    if "PNG" not in known:
        pytest.skip("needs Pillow: install rheobase[images]")
    content = known["PNG"].files()["a.png"]
    made = [known["PNG"].structure[".png"](content, Random(i)) for i in range(30)]
    assert len(set(made)) > 20
    assert all(found.startswith(b"\x89PNG\r\n\x1a\n") for found in made)


@pytest.mark.parametrize("attacked", targets(), ids=lambda found: found.name)
def test_whole_files_are_read_and_damaged_ones_read_or_refused(attacked: Target, tmp_path: Path) -> None:
    originals = attacked.files()
    folder = tmp_path / attacked.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worker.write_files(folder, originals)
        assert worker.attempt(attacked, folder)[0] == "read"
        for number in range(3):
            name, content = attacked.case(originals, Random(number))
            worker.write_files(folder, {**originals, name: content})
            assert worker.attempt(attacked, folder)[0] in worker.GOOD


def test_the_exit_code_and_the_file_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(facts={"files": 3})
    report.count("kind", "crash")
    report.problems.append("kind: crash")
    monkeypatch.setattr(files, "attack", lambda full, seed: report)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    out = tmp_path / "attack.json"
    out.write_text(json.dumps({"parts": {"else": {"problems": []}}}))
    monkeypatch.setattr(sys, "argv", ["attack", "--only", "files", "--seed", "7", "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    found = json.loads(out.read_text())["parts"]
    assert found.keys() == {"else", "files"}
    assert found["files"]["total"] == {"crash": 1}
    assert found["files"]["outcomes"] == {"kind": {"crash": 1}}
    assert found["files"]["record"]["seed"] == 7
    assert found["files"]["record"]["sources"]["attack"] == tree_id(Path(files.__file__).parent)
    report.problems.clear()
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
