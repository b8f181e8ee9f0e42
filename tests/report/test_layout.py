"""Pages, and numbers with units."""

from pathlib import Path

import pytest

from rheobase.report.layout import document, joule, write


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.5e-3, "2.5 mJ"),
        (1e-3, "1 mJ"),
        (9.99e-4, "999 uJ"),
        (4e-6, "4 uJ"),
        (5e-9, "5 nJ"),
        (3e-10, "300 pJ"),
        (9.996e-7, "1 uJ"),
        (9.994e-7, "999 nJ"),
        (2.5, "2.5 J"),
        (0.0, "0 pJ"),
    ],
)
def test_energy(value: float, text: str) -> None:
    assert joule(value) == text


def test_a_page_is_utf8_whatever_its_names_are(tmp_path: Path) -> None:
    write(document("caf\udce9", "Bär", {}, []), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<title>caf\\udce9</title>" in page
    assert "Bär" in page
