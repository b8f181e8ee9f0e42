"""Whether what is published can be checked: python -m tools.check_results

Every file in results/ is strict JSON, says how it was made, and comes from sources that a commit of this repository
has. Tables in documents are those that tools write from the results, and a figure in running text stands in a file that
its section names.

results/owed.txt lists what is not so yet, and what is to be done. Nothing else may fail, and what no longer fails must
leave the list.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rheobase.paper.others import OTHERS
from rheobase.paper.training import PUBLISHED
from tools import documents, readme, steptimes, theory, trust
from tools.commit_of import commits_of, has_history
from tools.figure import drawings
from tools.keep import FILES, START
from tools.results import ROOT

ENTRIES = ("command", "sources", "packages", "python", "platform", "device", "threads", "seed", "data", "time")
PARTS = {*FILES, START} - {"environment.json"}  # of a run, whose record is in its environment.json
OWED = "results/owed.txt"
TABLES: dict[str, Callable[[str], str]] = {
    "README.md": readme.with_results,
    "docs/theory.md": theory.with_results,
    "docs/training.md": steptimes.with_hours,
    "docs/trust.md": trust.with_results,
    **{name: documents.writer(name) for name in documents.DOCUMENTS},
}
_SCALES = {"%": (1, 100), "us": (1, 1e6), "ms": (1, 1e3)}  # of a number in a file, in the unit of the text
_FIGURE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(%|us|ms|s|images/s|TB/s)(?![\w/])")
_MEASURED = re.compile(r"^(\|.*(?:measured|accuracy|%|\bus\b|\bms\b|/s\b).*\|)\n\|[ -]*-[-| ]*\|$", re.MULTILINE)
_NAMED = re.compile(r"results(?:/[\w.-]+)+")


class Fault(NamedTuple):
    """What is wrong, and where: a file, or a section of a document."""

    place: str
    what: str


def strict(text: str) -> Any:
    """The content of a JSON file; numbers that JSON does not know are refused."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def read(path: Path) -> Any:
    """The content of a file of results; of several lines, the list of them."""
    text = path.read_text()
    return [strict(line) for line in text.splitlines()] if path.suffix == ".jsonl" else strict(text)


def results_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Files that are no JSON, that do not say how they were made, or that come from sources nobody committed."""
    traceable = has_history(root)
    for path in sorted((root / "results").rglob("*.json*")):
        place = path.relative_to(root).as_posix()
        try:
            content = read(path)
        except ValueError as error:
            yield Fault(place, f"not strict JSON: {error}")
            continue
        if path.name in PARTS and (path.parent / "environment.json").exists():
            continue
        record = content.get("record") if isinstance(content, dict) else None
        if not isinstance(record, dict):
            yield Fault(place, "has no record of how it was made")
        elif missing := [name for name in ENTRIES if name not in record]:
            yield Fault(place, f"its record does not say {', '.join(missing)}")
        elif traceable and not committed(tuple(record["sources"].items()), root):
            yield Fault(place, "no commit has its sources")


@cache
def committed(sources: tuple[tuple[str, str], ...], root: Path) -> bool:
    """Whether a commit has these sources."""
    return bool(commits_of(dict(sources), root))


def table_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Documents whose tables are not those that would be written now."""
    for name, written in TABLES.items():
        text = (root / name).read_text()
        tools = ", ".join(sorted(set(re.findall(r"<!-- \w+: written by (python -m tools\.\w+) -->", text))))
        try:
            if written(text) != text:
                yield Fault(name, f"its tables are not those of results/; run {tools}")
        except FileNotFoundError as error:
            yield Fault(name, f"its tables cannot be written: there is no {Path(error.filename).name} in results/")


def drawing_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Drawings that are not those of the results."""
    for name, drawing in drawings(root / "results").items():
        path = root / "results" / name
        if not path.exists() or path.read_text() != drawing:
            yield Fault(f"results/{name}", "does not show what is in results/; run python -m tools.figure")


def figure_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Figures in running text that stand in no file of results which their section names; tables written by hand.

    A whole number is taken for a setting ("slices of 30 ms"), unless its own paragraph names results.
    """
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for heading, text in sections(path.read_text()):
            place = f"{path.relative_to(root).as_posix()}#{heading}"
            for headings in _MEASURED.findall(text):
                yield Fault(place, f"a table of measurements that no tool writes: {headings}")
            named = _named(text)
            numbers = tuple(number for name in named for number in numbers_in(root / name))
            for paragraph in re.split(r"\n\s*\n|\n(?=- )", text):
                for figure, unit in _FIGURE.findall(running(paragraph)):
                    if ("." in figure or _named(paragraph)) and not holds(numbers, figure, unit):
                        where = f"not in {' or '.join(named)}" if named else "its section names no file of results"
                        yield Fault(place, f"{figure} {unit}: {where}")


def _named(text: str) -> list[str]:
    """The files and folders of results that a text names."""
    return sorted({name.rstrip(".") for name in _NAMED.findall(text)})


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Heading and content of every section; blocks of code and tables that tools write are left out."""
    text = re.sub(r"<!-- (\w+): written by .*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    first, *rest = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    yield "", first
    yield from zip(rest[::2], rest[1::2], strict=True)


def running(text: str) -> str:
    """Text without code, targets of links and rows of tables."""
    text = re.sub(r"^ *\|.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def holds(numbers: tuple[float, ...], figure: str, unit: str) -> bool:
    """Whether one of the numbers, or of those in the paper, is the figure when it is rounded like it."""
    digits, value = len(figure.partition(".")[2]), float(figure)
    return any(round(n * s, digits) == value for n in numbers + published() for s in _SCALES.get(unit, (1,)))


@cache
def published() -> tuple[float, ...]:
    """The accuracies that the paper prints, its own and those of other systems."""
    own = [number for table in PUBLISHED.values() for number in table.values()]
    return (*own, *(other.accuracy for table in OTHERS.values() for rows in table.values() for other in rows))


@cache
def numbers_in(path: Path) -> tuple[float, ...]:
    """All numbers in a file of results, or in those of a folder."""
    if path.is_dir():
        return tuple(n for file in sorted(path.rglob("*.json*")) for n in numbers_in(file))
    return tuple(_numbers(read(path))) if path.is_file() and path.suffix in (".json", ".jsonl") else ()


def _numbers(content: Any) -> Iterator[float]:
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            yield from _numbers(value)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield float(content)


def owed(root: Path = ROOT) -> dict[str, str]:
    """Places that may fail, and what is to be done about each."""
    path = root / OWED
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(" -> ", 1) for line in lines if line and not line.startswith("#"))


def verdict(faults: list[Fault], allowed: dict[str, str]) -> list[str]:
    """A sentence for everything that must not be."""
    places = {fault.place for fault in faults}
    new = [f"{fault.place}: {fault.what}" for fault in faults if fault.place not in allowed]
    mended = [
        f"{place}: nothing is wrong there any more; remove it from {OWED}" for place in allowed if place not in places
    ]
    return new + mended


def main() -> None:
    faults = [*results_faults(), *table_faults(), *drawing_faults(), *figure_faults()]
    allowed = owed()
    if not has_history():
        print("this clone has no whole history, so it was not checked whether commits have the sources of results")
    wrong = verdict(faults, allowed)
    print("\n".join(wrong) if wrong else f"results can be checked, but for {len(allowed)} entries of {OWED}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
