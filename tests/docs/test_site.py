"""The documentation site: it builds without a warning, no link is broken, and a browser shows it without a network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.docs.browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[2]
PHONE = 360
# What a reader could not reach: content beyond the right edge that does not scroll by itself.
OUTSIDE = """[...document.querySelectorAll(".md-content *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest("pre, .md-typeset__scrollwrap"))
    .filter(e => getComputedStyle(e.parentElement).overflowX !== "auto")
    .map(e => e.outerHTML.slice(0, 200))"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
        reason="MkDocs is not installed (rheobase[docs]): the documentation site was not built",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """Where a page leads, what it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in found:
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(found["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_the_site_has_every_document(site: Path, pages: dict[Path, Page]) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    names = {path.relative_to(site) for path in pages}
    assert documents <= names
    assert {Path("index.html"), Path("reference/commands.html"), Path("results/cifar10/index.html")} <= names


def test_no_link_is_broken(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # served from any address, so its links begin at the root
            continue
        for link in [*page.links, *page.loads]:
            address, anchor = urldefrag(link)
            if address.startswith(("https://", "data:", "mailto:")):
                continue
            target = path if not address else (path.parent / unquote(address)).resolve()
            if not target.is_file() or (target in pages and anchor and unquote(anchor) not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert not [load for page in pages.values() for load in page.loads if "//" in load]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium installed: the site was not opened in a browser")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_every_page_fits_a_phone_and_has_no_errors(site: Path, pages: dict[Path, Page], browser: Browser) -> None:
    browser.width(PHONE)
    browser.problems.clear()
    found = {}
    for path in pages:
        if path.is_relative_to(site / "results") or path.name == "404.html":
            continue
        browser.open(path.as_uri())
        wide = browser.run("document.documentElement.scrollWidth")
        outside = browser.run(OUTSIDE)
        if wide > PHONE or outside or browser.problems or not browser.run("document.querySelector('h1').innerText"):
            found[str(path.relative_to(site))] = (wide, outside, list(browser.problems))
        browser.problems.clear()
    assert not found


def test_the_search_finds_something_without_a_server(site: Path, browser: Browser) -> None:
    browser.width(1200)
    browser.problems.clear()
    browser.open((site / "index.html").as_uri())
    first = browser.run("""new Promise(resolve => {
        const field = document.querySelector("[data-md-component=search-query]");
        document.querySelector("#__search").click();
        field.focus();
        field.value = "surrogate";
        const look = () => {
            const found = document.querySelector(".md-search-result__item a");
            if (found) return resolve(found.href);
            field.dispatchEvent(new Event("input", {bubbles: true}));
            field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
            setTimeout(look, 100);
        };
        look();
    })""")
    assert first.startswith(site.as_uri())
    assert browser.problems == []
