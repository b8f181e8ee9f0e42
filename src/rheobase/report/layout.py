"""Shared by all pages: the frame, sections, facts, and numbers with units."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from rheobase.files import atomic_write

ENERGY_NOTE = (
    "energy is estimated from mean firing rates, for 45 nm, without memory traffic; `rheobase report` counts operations"
)


def document(title: str, lead: str, facts: Mapping[str, str], sections: Iterable[str]) -> str:
    """Return a self-contained page that opens from disk, in light or dark mode as the reader prefers."""
    page = Template((files("rheobase.report") / "page.html").read_text("utf-8"))
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return page.substitute(title=escape(title), lead=escape(lead), facts=shown, sections="".join(sections))


def write(page: str, path: Path) -> None:
    """Write a page. A name that is not UTF-8, as old archives bring, is shown with its bytes as numbers."""
    with atomic_write(path) as part:
        part.write_bytes(page.encode(errors="backslashreplace"))


def section(title: str, note: str, body: str, kind: str = "") -> str:
    """Return a section of a page. Words of the note in backticks are code."""
    said = re.sub("`([^`]+)`", r"<code>\1</code>", escape(note))
    return f'<section class="{kind}"><h2>{escape(title)}</h2><p class="note">{said}</p>{body}</section>'


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table that scrolls sideways if it is too wide."""
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def joule(value: float) -> str:
    """Return an energy with a suitable unit."""
    value = float(f"{value:.3g}")  # 999.9 nJ are 1 uJ
    for unit, size in (("J", 1), ("mJ", 1e-3), ("uJ", 1e-6), ("nJ", 1e-9)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-12:.3g} pJ"


def duration(seconds: float) -> str:
    """Return a time with a suitable unit."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"
