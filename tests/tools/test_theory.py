"""docs/theory.md shows what is in results/paper, and nothing else."""

import pytest

from tools.theory import DOCUMENT, RESULTS, SECTIONS, with_results


def test_the_tables_are_those_of_the_results() -> None:
    text = DOCUMENT.read_text()
    assert with_results(text) == text, "run python -m tools.theory"


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_has_numbers(name: str) -> None:
    rows = SECTIONS[name]().splitlines()
    assert sum(any(c.isdigit() for c in row) and row.startswith("| ") for row in rows) >= 2


def test_results_name_no_place_of_the_machine_they_came_from() -> None:
    for path in RESULTS.rglob("*.json"):
        assert not [part for part in ("/tmp", "/root", "/home", "/work") if part in path.read_text()], path
