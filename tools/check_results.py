"""Check what is published: python -m tools.check_results

Every file in results/ must be strict JSON, record how it was made, and come from sources in a commit of this
repository. Tables in documents must be those that tools write from the results. A number in running text must be in a
file that its section names.

results/owed.txt lists the exceptions, and what to do about them. Nothing else may fail, and an entry that no longer
fails must leave the list.
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
_SCALES = {  # from a number in a file to the unit in the text
    "%": (1, 100), "us": (1, 1e6), "ms": (1, 1e3), "MiB": (1, 2**-20), "GiB": (2**-30,),
}  # fmt: skip
_UNIT = r" ?(%|us|ms|s|images/s|TB/s|MiB|GiB)(?![\w/])"
_NUMBER = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?)(?!\.?\d)(?:{_UNIT})?")
_LIST = re.compile(r"(,|;|,? and|,? or| to)\s")  # between numbers that share the unit of the last one
_MEASURED = re.compile(r"^(\|.*(?:measured|accuracy|%|\bus\b|\bms\b|/s\b).*\|)\n\|[ -]*-[-| ]*\|$", re.MULTILINE)
_NAMED = re.compile(r"results(?:/[\w.-]+)+")


class Fault(NamedTuple):
    """What is wrong, and where: a file, or a section of a document."""

    place: str
    what: str


def strict(text: str) -> Any:
    """Parse strict JSON. Raise a ValueError for NaN and infinities."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def read(path: Path) -> Any:
    """Return the content of a results file; for JSON lines, a list."""
    text = path.read_text()
    return [strict(line) for line in text.splitlines()] if path.suffix == ".jsonl" else strict(text)


def results_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Find files that are not JSON, do not record how they were made, or come from sources that are not committed."""
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
            yield Fault(place, f"its record lacks {', '.join(missing)}")
        elif content.get("to_come"):
            yield Fault(place, "is unfinished; repeat its command")
        elif traceable and not committed(tuple(record["sources"].items()), root):
            yield Fault(place, "no commit has its sources")


@cache
def committed(sources: tuple[tuple[str, str], ...], root: Path) -> bool:
    """Return whether a commit has these sources."""
    return bool(commits_of(dict(sources), root))


def table_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Find documents whose tables do not match the results."""
    for name, written in TABLES.items():
        text = (root / name).read_text()
        tools = ", ".join(sorted(set(re.findall(r"<!-- \w+: written by (python -m tools\.\w+) -->", text))))
        try:
            if written(text) != text:
                yield Fault(name, f"its tables do not match results/; run {tools}")
        except FileNotFoundError as error:
            yield Fault(name, f"its tables cannot be written: results/ lacks {Path(error.filename).name}")
        except ValueError as error:
            yield Fault(name, f"its tables cannot be written: {error}")


def drawing_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Find drawings that do not match the results."""
    try:
        drawn = drawings(root / "results")
    except ValueError as error:
        yield Fault("results", f"its drawings cannot be made: {error}")
        return
    for name, drawing in drawn.items():
        path = root / "results" / name
        if not path.exists() or path.read_text() != drawing:
            yield Fault(f"results/{name}", "does not match results/; run python -m tools.figure")


def figure_faults(root: Path = ROOT) -> Iterator[Fault]:
    """Find numbers in running text that are in no results file named by their section, and tables written by hand.

    A whole number counts as a setting ("slices of 30 ms"), unless its own paragraph names results.
    """
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for heading, text in sections(path.read_text()):
            place = f"{path.relative_to(root).as_posix()}#{heading}"
            for headings in _MEASURED.findall(text):
                yield Fault(place, f"a table of measurements that no tool writes: {headings}")
            named = _named(text)
            numbers = tuple(number for name in named for number in numbers_in(root / name))
            for paragraph in re.split(r"\n\s*\n|\n(?=- )", text):
                for figure, unit in figures(running(paragraph)):
                    if ("." in figure or _named(paragraph)) and not holds(numbers, figure, unit):
                        where = f"not in {' or '.join(named)}" if named else "its section names no results file"
                        yield Fault(place, f"{figure} {unit}: {where}")


def _named(text: str) -> list[str]:
    """Return the results files and folders that a text names."""
    return sorted({name.rstrip(".") for name in _NAMED.findall(text)})


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield heading and content of every section, without code blocks and tables that tools write."""
    text = re.sub(r"<!-- (\w+): written by .*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    first, *rest = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    yield "", first
    yield from zip(rest[::2], rest[1::2], strict=True)


def running(text: str) -> str:
    """Return the text without code, link targets and table rows."""
    text = re.sub(r"^ *\|.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def figures(text: str) -> list[tuple[str, str]]:
    """Return every number with a unit, in order.

    In "94.08, 94.19 and 95.1 %", all three are percentages, and so is the second in "95.4 % at T = 1, 95.9 at 2".
    """
    found = [*_NUMBER.finditer(text)]
    units = [match[2] for match in found]
    for i in range(len(found) - 2, -1, -1):
        if units[i] is None and "." in found[i][1] and _LIST.fullmatch(text, found[i].end(), found[i + 1].start()):
            units[i] = units[i + 1]
    for i in range(2, len(found)):
        if units[i] is None and "." in found[i][1] and re.match(r"\sat\s\d", text[found[i].end() :]):
            units[i] = next((unit for unit in units[i - 1 :: -1] if unit), None)
    return [(match[1], unit) for match, unit in zip(found, units, strict=True) if unit]


def holds(numbers: tuple[float, ...], figure: str, unit: str) -> bool:
    """Return whether one of the numbers, or of those in the paper, equals `figure` when rounded to its digits."""
    digits, value = len(figure.partition(".")[2]), float(figure)
    return any(round(n * s, digits) == value for n in numbers + published() for s in _SCALES.get(unit, (1,)))


@cache
def published() -> tuple[float, ...]:
    """Return the accuracies printed in the paper: its own and those of other systems."""
    own = [number for table in PUBLISHED.values() for number in table.values()]
    return (*own, *(other.accuracy for table in OTHERS.values() for rows in table.values() for other in rows))


@cache
def numbers_in(path: Path) -> tuple[float, ...]:
    """Return all numbers in a results file, or in all files of a folder."""
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
    """Return the places that may fail, and what to do about each."""
    path = root / OWED
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(" -> ", 1) for line in lines if line and not line.startswith("#"))


def verdict(faults: list[Fault], allowed: dict[str, str]) -> list[str]:
    """Return a sentence for everything that is wrong."""
    places = {fault.place for fault in faults}
    new = [f"{fault.place}: {fault.what}" for fault in faults if fault.place not in allowed]
    mended = [f"{place}: nothing is wrong there now; remove it from {OWED}" for place in allowed if place not in places]
    return new + mended


def main() -> None:
    faults = [*results_faults(), *table_faults(), *drawing_faults(), *figure_faults()]
    allowed = owed()
    if not has_history():
        print("this clone lacks the full history, so the commits of results were not checked")
    wrong = verdict(faults, allowed)
    print("\n".join(wrong) if wrong else f"results are in order, except {len(allowed)} entries of {OWED}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
