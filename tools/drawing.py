"""Parts of a drawing as plain SVG, in light or dark as the reader prefers."""

from html import escape

WIDTH = 760
STYLE = """
svg { font: 12px system-ui, sans-serif }
svg { --page: #fff; --ink: #24292f; --line: #d0d7de; --other: #8c959f; --own: #0072b2 }
@media (prefers-color-scheme: dark) {
  svg { --page: #0d1117; --ink: #e6edf3; --line: #3d444d; --other: #6e7681; --own: #56b4e9 }
}
text { fill: var(--ink) } .title { font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
.page { fill: var(--page) } .bar { fill: var(--other) } .own { fill: var(--own) } .grid { stroke: var(--line) }
.curve { fill: none; stroke-width: 2 } .c0 { stroke: #d55e00 } .c1 { stroke: #009e73 } .c2 { stroke: var(--own) }
.c3 { stroke: var(--other) } .c4 { stroke: #cc79a7 } .c5 { stroke: #e69f00 }
.mark { stroke: var(--ink); stroke-dasharray: 5 4 }
"""


def line(kind: str, left: float, right: float, top: float, bottom: float) -> str:
    """Return a line from the left top to the right bottom."""
    return f'<line class="{kind}" x1="{left:.1f}" x2="{right:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return words that begin at a place; kind may say that they end or have their middle there."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def svg(parts: list[str], height: float, title: str) -> str:
    """Return the whole drawing."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
    page = f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", page, *parts, "</svg>\n"])
