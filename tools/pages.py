"""Add pages to the documentation site that are not files in docs/: a hook of MkDocs, used by `make docs`.

README.md becomes the start page, tools/reference.py writes the reference, and results/ can be browsed. Documents link
to each other by their paths in the repository, which code hosts follow. Here these links become those of the site.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from tools import reference

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
FILES = ("LICENSE", "CITATION.cff")
SHORT = 16  # characters of a name that fits into any column
_CELL, _CODE = re.compile(r"<td\b.*?</td>", re.DOTALL), re.compile(r"<code>([^<]*)</code>")
_OPTION = re.compile(r"<code>(--[a-z0-9-]+)</code>")
_BREAK = re.compile(r"([/_.]|::)(?=\w)")
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages that are not in docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for name in FILES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / "results").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            files.append(File.generated(config, f"{name}/index.md", content=listing(path)))
        else:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def listing(folder: Path) -> str:
    """Return a page with the content of a results folder, and its pictures."""
    entries = sorted(folder.iterdir())
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    lines += [f"- [{entry.name}]({entry.name}{'/index.md' if entry.is_dir() else ''})" for entry in entries]
    shown = {entry.stem: entry for entry in entries if entry.suffix in (".png", ".svg")}  # one per name
    lines += [f"\n![{name}]({entry.name})" for name, entry in shown.items()]
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links between files of the repository by links of the site."""
    here = source_of(page.file.src_uri)
    return "".join(
        part if is_code else _LINK.sub(lambda link: _relinked(link, here, page.file.src_uri), part)
        for part, is_code in parts(markdown)
    )


def on_page_content(html: str, **_: Any) -> str:
    """Let long names in tables break after a slash, colon, point or underscore. Short ones and options never break."""
    html = _CELL.sub(lambda cell: _CODE.sub(_breaking, cell[0]), html)
    return _OPTION.sub(r'<code class="whole">\1</code>', html)


def _breaking(code: re.Match[str]) -> str:
    if len(code[1]) <= SHORT:
        return f'<code class="whole">{code[1]}</code>'
    return f"<code>{_BREAK.sub(lambda end: f'{end[0]}<wbr>', code[1])}</code>"


def parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the text in pieces, each with whether it is a code block."""
    for i, part in enumerate(re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.DOTALL | re.MULTILINE)):
        yield part, i % 2 == 1


def source_of(page: str) -> str:
    """Return the file of the repository that a page comes from."""
    origins = {page: name for name, page in PAGES.items()}
    return origins.get(page) or (page if page.startswith(("results/", "reference/")) else f"docs/{page}")


def target_of(path: str) -> str:
    """Return where a file or folder of the repository is on the site."""
    if path.startswith("results/") and (ROOT / path).is_dir():
        return f"{path.rstrip('/')}/index.md"
    return PAGES.get(path) or path.removeprefix("docs/")


def _relinked(link: re.Match[str], here: str, page: str) -> str:
    opening, target, anchor, closing = link.groups(default="")
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    found = posixpath.relpath(target_of(path), posixpath.dirname(page) or ".")
    return f"{opening}{found}{anchor}{closing}"
