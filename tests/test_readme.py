"""README.md shows what is in results/, and nothing else."""

from benchmarks.readme import ROOT, with_results


def test_the_tables_are_those_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text()
    assert with_results(readme) == readme, "run python -m benchmarks.readme"
