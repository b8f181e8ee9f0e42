"""What is published can be checked, and the check sees what cannot."""

import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from rheobase.files import write_json
from rheobase.paper.result import Result
from rheobase.train.record import record, write_result
from rheobase.train.sources import tree_id
from tests.repository import commit, new_repository
from tests.train.test_record import ENTRIES
from tools import check_results
from tools.check_results import (
    ROOT,
    Fault,
    drawing_faults,
    figure_faults,
    holds,
    owed,
    results_faults,
    strict,
    table_faults,
    verdict,
)
from tools.figure import drawings


def test_this_repository_passes() -> None:
    faults = [*results_faults(), *table_faults(), *drawing_faults(), *figure_faults()]
    assert verdict(faults, owed()) == []


def test_the_record_that_is_asked_for_is_the_one_that_is_written() -> None:
    assert {*check_results.ENTRIES} == ENTRIES == record().keys()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a result and a document that shows it."""
    folder = new_repository(tmp_path / "repository")
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("one")
    (folder / "docs").mkdir()
    (folder / "README.md").write_text("# A\n\nSlices of 30 ms, 93.16 % in the paper.\n")
    made = record(seed=0) | {"sources": {"src": tree_id(folder / "src")}}
    (folder / "results").mkdir()
    write_json(
        folder / "results" / "found.json",
        {"record": made, "accuracy": 0.94188, "seconds": [612.4, 0.0032], "bytes": 630000},
    )
    commit(folder)
    return folder


def text(root: Path, words: str) -> list[str]:
    (root / "docs" / "a.md").write_text(f"# A\n\n## Speed\n\n{words}\n")
    check_results.numbers_in.cache_clear()
    return [f"{fault.place}: {fault.what}" for fault in figure_faults(root)]


def test_a_whole_result_passes(root: Path) -> None:
    assert list(results_faults(root)) == []


def test_json_that_is_not_strict(root: Path) -> None:
    (root / "results" / "bad.json").write_text('{"loss": NaN}')
    (root / "results" / "rows.jsonl").write_text('{"loss": 1}\n{"loss":')
    first, second, *others = results_faults(root)
    assert first == Fault("results/bad.json", "not strict JSON: NaN is not JSON")
    assert second.place == "results/rows.jsonl"
    assert not others
    with pytest.raises(ValueError, match="Infinity is not JSON"):
        strict("[Infinity]")


def test_a_result_without_its_record(root: Path) -> None:
    write_json(root / "results" / "old.json", {"environment": {}})
    some = dict.fromkeys(ENTRIES - {"seed", "data"}, 1)
    write_json(root / "results" / "part.json", {"record": some})
    assert list(results_faults(root)) == [
        Fault("results/old.json", "has no record of how it was made"),
        Fault("results/part.json", "its record lacks seed, data"),
    ]


def test_a_result_that_was_interrupted_is_a_fault(root: Path) -> None:
    content = strict((root / "results" / "found.json").read_text())
    path = Result("fig2", "Fig. 2", "digits", {"rows": [1]}, [], to_come=3).save(root / "results")
    write_json(path, content | {"to_come": strict(path.read_text())["to_come"]})
    assert list(results_faults(root)) == [Fault("results/fig2.json", "is unfinished; repeat its command")]
    path = Result("fig2", "Fig. 2", "digits", {"rows": [1]}, []).save(root / "results")
    assert "to_come" not in strict(path.read_text())


def test_the_files_of_a_run_have_the_record_of_the_run(root: Path) -> None:
    run = root / "results" / "run"
    run.mkdir()
    write_json(run / "recipe.json", {"name": "demo"})
    (run / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    assert [fault.place for fault in results_faults(root)] == [
        "results/run/metrics.jsonl", "results/run/recipe.json"
    ]  # fmt: skip
    write_json(run / "environment.json", {"record": strict((root / "results" / "found.json").read_text())["record"]})
    assert list(results_faults(root)) == []
    write_json(run / "timesteps.json", {"timesteps": {}})
    assert [fault.place for fault in results_faults(root)] == ["results/run/timesteps.json"]


def test_sources_that_nobody_committed(root: Path) -> None:
    write_result(
        root / "results" / "new.json", {}
    )  # the sources of this checkout, of which that repository knows nothing
    assert list(results_faults(root)) == [Fault("results/new.json", "no commit has its sources")]
    shutil.rmtree(root / ".git")  # without a history it cannot be told
    assert list(results_faults(root)) == []


@pytest.mark.parametrize(
    "words",
    [
        "It has 94.19 % (`results/found.json`), after 612 s.",
        "It has 94.2 % ([results](../results/found.json)).",
        "A step takes 3.2 ms, see [results](../results/found.json).",
        "A checkpoint every 30 s; slices of 5 ms.",
        "It has 94.19, 94.2 and 94.188 % (`results/found.json`) at a learning rate of 0.25, with torch 2.11.",
        "It has 94.19 % at T = 1, 94.2 at 2 and takes 0.60 MiB (`results/found.json`).",
        "`rheobase 12.5 %` is code, and the paper has 63.72 %.",
        "<!-- a: written by python -m tools.a -->\n\n| us |\n|---|\n| 1.5 us |\n\n12.5 %\n\n<!-- end of a -->",
    ],
)
def test_figures_that_stand_in_a_file(root: Path, words: str) -> None:
    assert text(root, words) == []


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        ("It has 94.18 % (`results/found.json`).", ["94.18 %: not in results/found.json"]),
        ("It has 94.19 %.", ["94.19 %: its section names no results file"]),
        ("It takes 613 s (`results/found.json`).", ["613 s: not in results/found.json"]),
        ("`results/found.json`: 94.18, 94.19 and 94.2 %.", ["94.18 %: not in results/found.json"]),
        ("`results/found.json`: 94.18 to 94.2 %.", ["94.18 %: not in results/found.json"]),
        ("`results/found.json`: 94.19 % at T = 1, 94.18 at 2.", ["94.18 %: not in results/found.json"]),
        ("`results/found.json`: 0.61 MiB, against 0.60.", ["0.61 MiB: not in results/found.json"]),
        ("`results/found.json` has it:\n\n- 94.19 % and 28.5 us", ["28.5 us: not in results/found.json"]),
        (
            "| network | accuracy |\n|---|---|\n| a | 3 |",
            ["a table of measurements that no tool writes: | network | accuracy |"],
        ),
    ],
)
def test_figures_that_no_file_holds(root: Path, words: str, faults: list[str]) -> None:
    assert text(root, words) == [f"docs/a.md#Speed: {fault}" for fault in faults]


def test_figures_are_compared_as_they_are_rounded() -> None:
    assert holds((0.93455,), "93.5", "%")
    assert not holds((0.93455,), "93.44", "%")
    assert holds((2.8e-5,), "28", "us")
    assert not holds((0.935,), "93.5", "s")


def test_a_table_that_was_changed_by_hand(tmp_path: Path) -> None:
    for name in check_results.TABLES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        changed = (ROOT / name).read_text().replace("<!-- end of ", "| more | 1 |\n\n<!-- end of ", 1)
        (tmp_path / name).write_text(changed)
    assert [fault.place for fault in table_faults(tmp_path)] == [*check_results.TABLES]


def test_a_drawing_of_other_results(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    kept = "step-nvidia-h200.json"
    (results / kept).write_bytes((ROOT / "results" / kept).read_bytes())
    missing = Fault("results/speed-nvidia-h200.svg", "does not match results/; run python -m tools.figure")
    assert [*drawing_faults(tmp_path)] == [missing]
    (drawing,) = drawings(results).values()
    (results / "speed-nvidia-h200.svg").write_text(drawing)
    assert [*drawing_faults(tmp_path)] == []
    (results / "speed-nvidia-h200.svg").write_text(drawing.replace("Rheobase", "Other"))
    assert [*drawing_faults(tmp_path)] == [missing]


def test_results_that_cannot_be_shown_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "t2 holds runs that do not differ in their seed alone"

    def refuse(_: object) -> NoReturn:
        raise ValueError(words)

    (tmp_path / "README.md").touch()
    monkeypatch.setattr(check_results, "TABLES", {"README.md": refuse})
    monkeypatch.setattr(check_results, "drawings", refuse)
    assert [*table_faults(tmp_path)] == [Fault("README.md", f"its tables cannot be written: {words}")]
    assert [*drawing_faults(tmp_path)] == [Fault("results", f"its drawings cannot be made: {words}")]


def test_what_is_owed_may_fail_and_nothing_else() -> None:
    faults = [Fault("results/a.json", "has no record"), Fault("docs/b.md#C", "1.5 %: not in results")]
    allowed = {"results/a.json": "measure it again", "results/c.json": "remove it"}
    assert verdict(faults, allowed) == [
        "docs/b.md#C: 1.5 %: not in results",
        "results/c.json: nothing is wrong there now; remove it from results/owed.txt",
    ]
    assert verdict([], {}) == []


def test_what_is_owed_is_a_place_and_what_to_do(tmp_path: Path) -> None:
    assert owed(tmp_path) == {}
    (tmp_path / "results").mkdir()
    (tmp_path / check_results.OWED).write_text("# why\n\nresults/a.json -> measure\ndocs/b.md#C: d -> remove\n")
    assert owed(tmp_path) == {"results/a.json": "measure", "docs/b.md#C: d": "remove"}
