"""Links of the repository become links of the site."""

from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="MkDocs is not installed (rheobase[docs])")
from tools import pages


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "docs/training.md", "training.md"),
        ("index.md", "docs/data.md#decisions", "data.md#decisions"),
        ("index.md", "results/cifar10/t2", "results/cifar10/t2/index.md"),
        ("index.md", "LICENSE", "LICENSE"),
        ("training.md", "../results/step-cpu.json", "results/step-cpu.json"),
        ("training.md", "../README.md", "index.md"),
        ("training.md", "neurons.md", "neurons.md"),
        ("tutorials/network.md", "../neurons.md", "../neurons.md"),
        ("tutorials/network.md", "../../results/cifar10", "../results/cifar10/index.md"),
        ("contributing.md", "docs/plugins.md", "plugins.md"),
        ("reference/recipes.md", "settings.md", "settings.md"),
        ("results/cifar10/index.md", "t2/index.md", "t2/index.md"),
        ("index.md", "https://example.org/docs/a.md", "https://example.org/docs/a.md"),
    ],
)
def test_where_a_link_leads(page: str, link: str, expected: str) -> None:
    found = pages.on_page_markdown(f"see [it]({link}).", SimpleNamespace(file=SimpleNamespace(src_uri=page)))
    assert found == f"see [it]({expected})."


def test_code_stays_as_it_is() -> None:
    text = "[a](docs/a.md)\n\n```py\nx = [0](docs/a.md)\n```\n\n[a](docs/a.md)"
    found = pages.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri="index.md")))
    assert found == text.replace("[a](docs/a.md)", "[a](a.md)")


def test_long_names_in_tables_may_break_and_short_ones_not() -> None:
    text = "<p><code>a.long_name::that.stays</code> <code>--no-break</code></p>"
    cell = "<td><code>--reset</code> or <code>a/test_it.py::test_name</code></td>"
    whole = '<code class="whole">--'
    broken = "a/<wbr>test_<wbr>it.<wbr>py::<wbr>test_<wbr>name"
    assert pages.on_page_content(text + cell) == (
        f'{text.replace("<code>--", whole)}<td><code class="whole">--reset</code> or <code>{broken}</code></td>'
    )
