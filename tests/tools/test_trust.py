"""docs/trust.md shows what is in results/attack.json, and nothing else."""

import json

from attack.report import Report
from tools.trust import DOCUMENT, EXACTNESS, FUZZ, RESULTS, SECTIONS, with_results


def test_the_counts_are_those_of_the_result() -> None:
    text = DOCUMENT.read_text()
    assert with_results(text) == text, "run python -m tools.trust"


def test_what_was_broken_is_counted() -> None:
    part = json.loads(RESULTS.read_text())["parts"]["files"]
    kind = next(iter(part["outcomes"]))
    part["outcomes"][kind] |= {"crash": 2, "hang": 1}
    part["total"] |= {"crash": 2, "hang": 1}
    text = SECTIONS["files"](part)
    assert " 3 crashed, hung" in text
    assert next(line for line in text.splitlines() if line.startswith(f"| {kind} ")).endswith(" 3 |")


def test_runs_that_broke_are_counted() -> None:
    part = json.loads(RESULTS.read_text())["parts"]["runs"]
    kind = next(iter(part["outcomes"]))
    part["outcomes"][kind] |= {"differs": 2, "hang": 1}
    part["total"] |= {"differs": 2, "hang": 1}
    text = SECTIONS["runs"](part)
    assert "; 3 hung, ended" in text
    assert f": {part['facts']['runs'] - 3} could be resumed" in text
    assert next(line for line in text.splitlines() if line.startswith(f"| {kind} ")).endswith(" 3 |")


def test_fuzzing_is_told_with_what_it_found() -> None:
    part = json.loads(RESULTS.read_text())["parts"]["files"]
    report = Report(facts={"inputs": 4321, "kinds": ["a", "b", "c"]})
    report.count("b", "problems")
    text = SECTIONS["fuzz"](part | report.as_dict())
    assert text.startswith("4321 inputs of 3 kinds (seed 0, ")
    assert text.endswith(": 1 kinds had an input that was neither read nor refused.")


def test_what_differs_on_a_gpu_is_said() -> None:
    content = json.loads(EXACTNESS.read_text())
    content["ways"]["deterministic"] = {
        "same_when_repeated": True,
        "same_when_killed_and_resumed": False,
        "epoch_seconds": [5.128, 4.999],
    }
    assert SECTIONS["exactness"](content).endswith("| deterministic | the same weights | other weights | 5.00 |")


def test_the_published_attack_broke_nothing() -> None:
    for path in (RESULTS, *([FUZZ] if FUZZ.exists() else [])):
        for part in json.loads(path.read_text())["parts"].values():
            assert part["problems"] == []
