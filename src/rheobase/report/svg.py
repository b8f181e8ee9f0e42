"""Charts as inline SVG. They use the colours of the page, so they follow light and dark mode."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite, log10
from typing import Any

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 360, 210, 46, 34, 8
DASHES = ("", "6 3", "2 3", "8 3 2 3")
SQUARE = 260  # of a confusion matrix
RASTER = 520  # the width of a raster, which has more room than the others
LETTER, NAME = 6.2, 13  # about the width of a letter, and the most letters of a name that are shown
NUMBER = 24  # the room of the number beside a point, and of the point that it must not meet
LINE, SINE = 15, 0.77  # from one turned name to the next, and the sine of their angle
BELOW = 15  # from a frame to the foot of the numbers below it
Bands = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def line_chart(
    series: Series, x: str, y: str, *, log: bool = False, bands: Bands | None = None, names: Sequence[str] = ()
) -> str:
    """Draw lines that differ in colour and dashes, some with a band (low, high). Points show their values as titles.

    With `names`, x counts them from 0.
    """
    bands = bands or {}
    series = {label: _finite(xs, ys, log) for label, (xs, ys) in series.items()}
    every_x = [v for xs, _ in series.values() for v in xs]
    every_y = [v for _, ys in series.values() for v in ys] + [v for pair in bands.values() for vs in pair for v in vs]
    if not every_x:
        return '<p class="note">nothing to draw</p>'
    ticks, place_y = _axis(every_y, log)
    low, high = min(every_x), max(every_x)
    wide = (WIDTH - LEFT - 10) / max(1, len(names))

    def place_x(v: float) -> float:
        return LEFT + (wide * (v + 0.5) if names else (v - low) / ((high - low) or 1) * wide)

    if names:
        parts, more = _under(names, place_x(0), wide, HEIGHT - BOTTOM)
    else:
        step = max(1, ceil((high - low) / 6))
        marks = [v for v in (low + i * step for i in range(7)) if v <= high]
        parts, more = [_text(place_x(v), HEIGHT - BOTTOM + BELOW, f"{v:g}", "middle") for v in marks], 0
    parts.append(_frame(ticks, place_y, x, y, more))
    for i, (label, (xs, ys)) in enumerate(series.items()):
        if label in bands:
            low_edge, high_edge = (list(zip(xs, edge, strict=True)) for edge in bands[label])
            around = " ".join(f"{place_x(a):.1f},{place_y(b):.1f}" for a, b in [*low_edge, *reversed(high_edge)])
            parts.append(f'<polygon class="dot c{i % 4}" fill-opacity=".18" points="{around}"/>')
        points = " ".join(f"{place_x(a):.1f},{place_y(b):.1f}" for a, b in zip(xs, ys, strict=True))
        parts.append(f'<polyline class="line c{i % 4}" stroke-dasharray="{_dashes(i)}" points="{points}"/>')
        if len(xs) <= 60:
            parts += [
                f'<circle class="dot c{i % 4}" cx="{place_x(a):.1f}" cy="{place_y(b):.1f}" r="2.5">'
                f"<title>{escape(f'{label} {names[int(a)]}' if names else f'{label} {a:g}')}: {b:.4g}</title></circle>"
                for a, b in zip(xs, ys, strict=True)
            ]
    return _svg(parts, f"{y} against {x}", WIDTH, HEIGHT + more) + _legend(list(series))


def scatter(points: Mapping[int, tuple[str, float, float, float]], x: str, y: str) -> str:
    """Draw a numbered point for every (label, x, y, deviation of y), with its values as title."""
    if not points:
        return '<p class="note">nothing to draw</p>'
    ticks, place_y = _axis([v for _, _, b, d in points.values() for v in (b - d, b + d)], False)
    every_x = [a for _, a, _, _ in points.values()]
    marks = _round_marks(min(every_x), max(every_x))
    low, high = marks[0], marks[-1]
    words = [f"{v:.6g}" for v in marks]
    start = LEFT + 4 + LETTER * len(words[0]) / 2  # so that the first number stands beside those of the other axis
    parts = [_frame(ticks, place_y, x, y)]

    def place_x(v: float) -> float:
        return start + (v - low) / (high - low) * (WIDTH - 26 - start)

    parts += [_text(place_x(v), HEIGHT - BOTTOM + BELOW, word, "middle") for v, word in zip(marks, words, strict=True)]
    centres = {number: (place_x(a), place_y(b)) for number, (_, a, b, _) in points.items()}
    for number, (label, a, b, d) in points.items():
        left, said, colour = place_x(a), f"{escape(label)}: {a:.4g}, {b:.4g}", f"c{(number - 1) % 4}"
        top, bottom = place_y(b + d), place_y(b - d)
        parts.append(f'<line class="line {colour}" x1="{left:.1f}" x2="{left:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        parts.append(
            f'<circle class="dot {colour}" cx="{left:.1f}" cy="{place_y(b):.1f}" r="4"><title>{said}</title></circle>'
        )
        beside = any(0 < cx - left < NUMBER and abs(cy - place_y(b)) < LINE for cx, cy in centres.values())
        parts.append(_text(left + (-7 if beside else 7), place_y(b) + 4, str(number), "end" if beside else "start"))
    return _svg(parts, f"{y} against {x}")


def bar_chart(labels: Sequence[str], values: Sequence[float], x: str, y: str) -> str:
    """Draw bars with their labels below them, each with its label and value as title."""
    ticks, place_y = _axis([0.0, *values], False)
    wide = (WIDTH - LEFT - 10) / len(values)
    parts, more = _under(labels, LEFT + wide / 2, wide, HEIGHT - BOTTOM)
    parts.append(_frame(ticks, place_y, x, y, more))
    for i, (label, value) in enumerate(zip(labels, values, strict=True)):
        left, top = LEFT + i * wide, place_y(value)
        parts.append(
            f'<rect class="bar" x="{left + wide * 0.1:.1f}" y="{top:.1f}" width="{wide * 0.8:.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}"><title>{escape(label)}: {value:.4g}</title></rect>'
        )
    return _svg(parts, f"{y} by {x}", WIDTH, HEIGHT + more)


def histogram(edges: Sequence[float], density: Sequence[float], mark: float, title: str) -> str:
    """Draw a small histogram with a line at `mark`."""
    width, height = 150, 74
    low, high, top = edges[0], edges[-1], max(density) or 1

    def place(v: float) -> float:
        return (v - low) / (high - low) * width

    parts = []
    for a, b, d in zip(edges, edges[1:], density, strict=False):
        tall = d / top * (height - 16)
        parts.append(
            f'<rect class="{"bar fired" if a >= mark else "bar"}" x="{place(a):.1f}" y="{height - 14 - tall:.1f}" '
            f'width="{place(b) - place(a):.1f}" height="{tall:.1f}"/>'
        )
    parts.append(f'<line class="mark" x1="{place(mark):.1f}" x2="{place(mark):.1f}" y1="0" y2="{height - 14}"/>')
    for v in (low, 0, high):
        anchor = "start" if v == low else "end" if v == high else "middle"
        parts.append(_text(place(v), height - 3, f"{v:g}", anchor))
    return _svg(parts, title, width, height)


def heat_map(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Draw a confusion matrix: rows are classes, columns predicted ones. Of many, only some have room for a name."""
    names = [label if len(label) <= NAME else f"{label[: NAME - 1]}\u2026" for label in labels]
    if len(set(names)) < len(set(labels)):  # long names that begin alike
        names = [_end(label) for label in labels]
    top, n = 4, len(labels)
    side = SQUARE / n
    left = (WIDTH - SQUARE + LETTER * max(map(len, names))) / 2
    gap, bottom = min(1, side / 10), top + SQUARE
    parts, more = _under(names, left + side / 2, side, bottom)
    parts += [_text(left - 4, top + (i + 0.5) * side + 4, names[i], "end") for i in range(0, n, ceil(LINE / side))]
    for i, row in enumerate(matrix):
        for j, count in ((j, count) for j, count in enumerate(row) if count):
            share, x, y = count / sum(row), left + j * side, top + i * side
            said = f"{escape(labels[i])} seen as {escape(labels[j])}: {count}"
            parts.append(
                f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{side - gap:.1f}" height="{side - gap:.1f}" '
                f'fill-opacity="{share:.3f}"><title>{said}</title></rect>'
            )
            if n <= 12:
                ink, x, y = ' class="inverse"' if share > 0.5 else "", x + side / 2, y + side / 2 + 3.5
                parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{ink}>{count}</text>')
    return _svg(parts, "confusion matrix", WIDTH, bottom + BELOW + 4 + more)


def raster(layers: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """Draw the spikes of a few neurons per layer. Time runs to the right. Many layers stand in columns."""
    steps = max(len(row) for rows in layers.values() for row in rows)
    columns = max(1, min(ceil(len(layers) / 9), RASTER // (96 + 10 * steps)))
    wide, count = RASTER / columns, ceil(len(layers) / columns)
    step, every = (wide - 96) / steps, ceil(steps / 8)
    gap = min(1, step / 10)
    parts, lowest = [], 0.0
    for column in range(columns):
        left, y = column * wide + 92, 4.0
        for name, rows in list(layers.items())[column * count : (column + 1) * count]:
            tall = 3.4 * len(rows)
            parts.append(_text(left - 4, y + tall / 2 + 3, _end(short(name)), "end"))
            parts.append(
                f'<rect class="band" x="{left:.1f}" y="{y:.1f}" width="{step * steps:.1f}" height="{tall:.1f}"/>'
            )
            for k, row in enumerate(rows):
                parts += [
                    f'<rect class="spike" x="{left + t * step + gap:.1f}" y="{y + 3.4 * k + 0.4:.1f}" '
                    f'width="{step - 2 * gap:.1f}" height="2.6"/>'
                    for t, fired in enumerate(row)
                    if fired
                ]
            y += tall + 5
        parts += [_text(left + (t + 0.5) * step, y + 9, str(t + 1), "middle") for t in range(0, steps, every)]
        lowest = max(lowest, y)
    return _svg(parts, "spikes over time", RASTER, int(lowest + 16))


def network(graph: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> str:
    """Draw layers of neurons from top to bottom, with shortcuts around what they skip. Darker layers fire more."""
    row, names = 34, ["input", *(node["name"] for node in graph)]
    at = {name: 14 + i * row for i, name in enumerate(names)}
    parts = []
    busiest = max(rates.values(), default=1) or 1
    for node in graph:
        for route in node["routes"]:
            start, end = at[route["source"]], at[node["name"]]
            if end - start == row:
                parts.append(f'<line class="edge" x1="150" x2="150" y1="{start + 10}" y2="{end - 10}"/>')
                parts.append(_text(156, (start + end) / 2 + 4, route["kind"], "start"))
            else:
                parts.append(f'<path class="edge skip" d="M240 {start} C282 {start} 282 {end} 240 {end}"/>')
                parts.append(_text(276, (start + end) / 2 + 4, route["kind"], "start"))
    for name in names:
        rate = rates.get(name, 0) / busiest
        shape = next((n["shape"] for n in graph if n["name"] == name), None)
        said = short(name) if shape is None else f"{short(name)}  {'x'.join(map(str, shape))}"
        parts.append(f'<rect class="node" x="60" y="{at[name] - 10}" width="180" height="20" rx="4"/>')
        parts.append(
            f'<rect class="cell" x="60" y="{at[name] - 10}" width="180" height="20" rx="4" '
            f'fill-opacity="{0.45 * rate:.2f}"><title>{escape(name)}: {rates.get(name, 0):.3f}</title></rect>'
        )
        parts.append(_text(150, at[name] + 4, said, "middle"))
    return _svg(parts, "the network", WIDTH, at[names[-1]] + 20)


def png(pixels: Sequence[Sequence[Sequence[int]]]) -> str:
    """Return bytes [C, H, W] as a PNG data URI: one channel is grey, two are red and green, three are colour."""
    channels, height, width = len(pixels), len(pixels[0]), len(pixels[0][0])
    planes = [pixels[0]] if channels == 1 else [*pixels[:3], *[[[0] * width] * height] * (3 - min(3, channels))]
    lines = b"".join(
        b"\0" + bytes(planes[c][y][x] for x in range(width) for c in range(len(planes))) for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(png).decode()}"


def short(name: str) -> str:
    """Shorten `body.3.soma2` or `body_3_soma2` to `3.soma2`."""
    return name.replace("_", ".").removeprefix("body.")


def _end(name: str) -> str:
    """Return the end of a long name, which is what tells layers apart, and names that begin alike."""
    return name if len(name) <= NAME else f"\u2026{name[1 - NAME :]}"


def _finite(xs: Sequence[float], ys: Sequence[float], log: bool) -> tuple[list[float], list[float]]:
    kept = [(a, b) for a, b in zip(xs, ys, strict=True) if isfinite(b) and (b > 0 or not log)]
    return [a for a, _ in kept], [b for _, b in kept]


def _axis(values: Sequence[float], log: bool) -> tuple[list[tuple[float, str]], Any]:
    """Return ticks (value, label), and a function from a value to its place."""
    low, high = min(values), max(values)
    if log:
        bottom, top = floor(log10(low)), ceil(log10(high))
        top = max(top, bottom + 1)
        ticks = [(10.0**e, f"1e{e}") for e in range(bottom, top + 1, max(1, (top - bottom) // 4))]
        return ticks, lambda v: HEIGHT - BOTTOM - (log10(v) - bottom) / (top - bottom) * (HEIGHT - BOTTOM - TOP)
    marks = _round_marks(low, high)
    scale = (HEIGHT - BOTTOM - TOP) / (marks[-1] - marks[0])
    return [(v, f"{v:.6g}") for v in marks], lambda v: HEIGHT - BOTTOM - (v - marks[0]) * scale


def _round_marks(low: float, high: float) -> list[float]:
    """Return a few round numbers, the first at or below `low`, the last at or above `high`."""
    raw = ((high - low) or abs(high) or 1) / 4
    unit = 10.0 ** floor(log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    first, last = floor(low / step), ceil(high / step)
    if first == last:
        first, last = (first - 1, last) if high > 0 else (first, last + 1)  # 100 % is not the foot of an axis
    return [i * step for i in range(first, last + 1)]


def _under(names: Sequence[str], left: float, pitch: float, bottom: float) -> tuple[list[str], int]:
    """Write names below a frame, turned where they are too long, and only some of many.

    Return the height by which they exceed a line, too.
    """
    every = ceil(LINE / pitch)
    shown = [(left + i * pitch, _end(names[i])) for i in range(0, len(names), every)]
    longest = LETTER * max(len(name) for _, name in shown)
    if longest + 2 * LETTER < every * pitch:
        return [_text(x, bottom + BELOW, name, "middle") for x, name in shown], 0
    return [_text(x + 4, bottom + 8, name, "end", turned=-50) for x, name in shown], ceil(SINE * longest) - 6


def _frame(ticks: Sequence[tuple[float, str]], place_y: Any, x: str, y: str, more: int = 0) -> str:
    """Draw the axes. The name of the x axis stands lower by `more`."""
    parts = []
    for value, label in ticks:
        place = place_y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(_text(LEFT - 5, place + 3.5, label, "end"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 5 + more, x, "middle"))
    middle = (HEIGHT - BOTTOM) / 2
    parts.append(_text(10, middle, y, "middle", turned=-90))
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str, *, turned: int = 0) -> str:
    turn = f' transform="rotate({turned} {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def _dashes(i: int) -> str:
    """Return the dashes of line i. The first four lines differ in colour and dashes, the first sixteen in either."""
    return DASHES[(i + i // 4) % 4]


def _legend(labels: Sequence[str]) -> str:
    if len(labels) < 2:
        return ""
    keys = "".join(
        f'<span><svg viewBox="0 0 24 8" width="24" height="8" aria-hidden="true"><line class="line c{i % 4}" x1="0" '
        f'x2="24" y1="4" y2="4" stroke-dasharray="{_dashes(i)}"/></svg>{escape(label)}</span>'
        for i, label in enumerate(labels)
    )
    return f'<p class="legend">{keys}</p>'


def _svg(parts: Sequence[str], title: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
