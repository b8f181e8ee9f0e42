"""The page about several runs, and the picture in a terminal."""

import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from rheobase.report import svg
from rheobase.report.comparison import cells, notes, percent, render, spans
from rheobase.report.layout import duration
from rheobase.report.strips import strips
from rheobase.tasks.compare import compare
from tests.runs import made


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")
    for seed, last in ((0, 0.75), (1, 0.875)):
        made(folder / "<b>" / f"seed-{seed}", f"seed={seed}", accuracies=[0.5, last, last])
    made(folder / "other", "decay=0.5", accuracies=[0.25, 0.5])
    made(folder / "waiting", "decay=0.75", accuracies=[])
    return asdict(compare([folder]))


def charts(page: str) -> dict[str, ElementTree.Element]:
    found = (re.search(r"<h2>(.*?)</h2>.*?(<svg.*?</svg>)", section) for section in page.split("<section")[1:])
    return {match[1]: ElementTree.fromstring(match[2]) for match in found if match}


def test_page_has_everything_and_loads_nothing(found: dict[str, Any]) -> None:
    page = render(found)
    titles = ["The runs", "Settings that differ", "Learning curves", "Accuracy against time", "Accuracy against energy"]
    assert re.findall(r"<h2>(.*?)</h2>", page) == titles
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\(|https?://""", page)
    assert "<td>81.25 +- 8.84</td>" in page
    assert "<tr><td>decay</td><td>0.25</td><td>0.5</td><td>0.75</td></tr>" in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    assert facts == [("runs", "4"), ("highest accuracy, last epoch", "81.25 +- 8.84 %")]


def test_commands_in_a_note_are_code(found: dict[str, Any]) -> None:
    assert "<code>rheobase report</code> counts operations" in render(found)
    assert "`" not in render(found)


def test_every_row_names_its_runs(found: dict[str, Any]) -> None:
    headings, *rows = (re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", render(found)))
    assert headings[:5] == ["row", "name", "runs", "last epoch, %", "best epoch, %"]
    assert all(len(row) == len(headings) for row in rows[:3])
    names = [row[1].rpartition("/")[2] for row in rows[:3]]
    assert names == ["&lt;b&gt;, seeds 0, 1", "other, seed 0", "waiting, seed 0"]


def test_several_seeds_have_a_band(found: dict[str, Any]) -> None:
    drawn = charts(render(found))["Learning curves"]
    assert len(drawn.findall("polyline")) == 2  # the run that waits has nothing to show
    (band,) = drawn.findall("polygon")
    corners = [tuple(map(float, corner.split(","))) for corner in band.attrib["points"].split()]
    line = [tuple(map(float, point.split(","))) for point in drawn.findall("polyline")[0].attrib["points"].split()]
    assert [x for x, _ in corners] == [x for x, _ in line] + [x for x, _ in reversed(line)]
    assert corners[0] == corners[-1] == line[0]  # the same accuracy after the first epoch
    low, high = corners[2], corners[3]
    assert low[1] > line[2][1] > high[1]  # down is less
    assert line[2][1] == pytest.approx((low[1] + high[1]) / 2, abs=0.11)


@pytest.mark.parametrize("title", ["Accuracy against time", "Accuracy against energy", "Learning curves"])
def test_everything_is_drawn_inside(found: dict[str, Any], title: str) -> None:
    drawn = charts(render(found))[title]
    dots = drawn.findall("circle")
    assert len(dots) == (5 if title == "Learning curves" else 2)
    for dot in dots:
        assert svg.LEFT <= float(dot.attrib["cx"]) <= svg.WIDTH
        assert 0 <= float(dot.attrib["cy"]) <= svg.HEIGHT - svg.BOTTOM


def test_better_is_higher_and_longer_is_further_right(found: dict[str, Any]) -> None:
    first, second = charts(render(found))["Accuracy against time"].findall("circle")  # 30 s to 81 %, 20 s to 50 %
    assert float(first.attrib["cx"]) > float(second.attrib["cx"])
    assert float(first.attrib["cy"]) < float(second.attrib["cy"])


def test_points_have_the_numbers_of_their_rows(found: dict[str, Any]) -> None:
    first, *others = found["rows"]
    drawn = charts(render(found | {"rows": [first | {"joule": None}, *others]}))["Accuracy against energy"]
    (dot,) = drawn.findall("circle")
    assert dot.attrib["class"] == "dot c1"
    assert drawn.findall("text")[-1].text == "2"


def test_what_is_not_known_is_a_dash(found: dict[str, Any]) -> None:
    assert cells(found["rows"][2]) == ["1", "-", "-", "4", "-", "-", "-"]
    assert percent(None) == "-"
    told = notes(found)
    assert "Row 2 is at epoch 2 of 3. Row 3 is at epoch 0 of 3. " in render(found)
    assert told[:2] == ["row 2 is at epoch 2 of 3", "row 3 is at epoch 0 of 3"]
    assert len(told) == 3
    first, *others = found["rows"]
    held_out = first | {"settings": first["settings"] | {"holdout": 100}}
    assert notes(found | {"rows": [held_out, *others]})[0].startswith("row 1 is measured on held-out training images")
    assert notes(found | {"simulated": True})[-1] == "simulated recordings say nothing about real ones"


def test_a_note_is_told_once_and_names_its_rows(found: dict[str, Any]) -> None:
    first, second, third = found["rows"]
    held_out = first | {"settings": first["settings"] | {"holdout": 100}}
    lacking = second | {"runs": [second["runs"][0] | {"not_known": "energy unknown (no reason)"}]}
    told = notes(found | {"rows": [held_out, lacking, held_out, lacking, held_out, held_out, third]})
    assert told[0] == "rows 1, 3, 5 and 6 are measured on held-out training images, not on the test images"
    assert "rows 2 and 4 are at epoch 2 of 3" in told
    assert "rows 2 and 4: energy unknown (no reason)" in told
    assert len(told) == 5


def test_numbers_in_a_row_are_a_span() -> None:
    assert spans([7]) == "7"
    assert spans([1, 2]) == "1 and 2"
    assert spans(range(1, 10)) == "1 to 9"
    assert spans([1, 2, 3, 5, 6, 8, 9, 10]) == "1 to 3, 5, 6 and 8 to 10"


def test_sixteen_lines_can_be_told_apart() -> None:
    drawn = svg.line_chart({str(i): ([1, 2], [i, i]) for i in range(16)}, "x", "y")
    looks = re.findall(r'<polyline class="(.*?)" stroke-dasharray="(.*?)"', drawn)
    assert len(looks) == len({*looks}) == 16


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: svg.scatter({1: ("a", 0.505, 71.2, 0.0), 2: ("b", 0.522, 74.0, 0.5)}, "energy per image, uJ", "%"),
        lambda: svg.line_chart({"": ([100, 200], [0.0, 3.0])}, "epoch", "loss"),
        lambda: svg.bar_chart(["soma", "0.soma"], [0.1, 0.2], "layer", "rate"),
    ],
)
def test_words_below_a_chart_touch_none_beside_it(drawn: Callable[[], str]) -> None:
    boxes = []
    for text in ElementTree.fromstring(drawn().partition("<p class")[0]).iter("text"):
        if "transform" not in text.attrib:
            x, y, wide = float(text.attrib["x"]), float(text.attrib["y"]), svg.LETTER * len(text.text or "")
            x -= {"start": 0, "middle": wide / 2, "end": wide}[text.attrib["text-anchor"]]
            boxes.append((x, x + wide, y - 8, y))  # a digit of this font is 8 high
    assert len(boxes) > 5
    for (left, right, top, foot), (left2, right2, top2, foot2) in combinations(boxes, 2):
        assert max(left, left2) - min(right, right2) >= 3 or max(top, top2) - min(foot, foot2) >= 3


def test_the_number_of_a_point_keeps_clear_of_the_point_beside_it() -> None:
    drawn = svg.scatter({1: ("a", 40.0, 71.0, 0.0), 2: ("b", 38.0, 71.0, 0.0), 3: ("c", 4.0, 71.0, 0.0)}, "s", "%")
    places = {number: anchor for anchor, number in re.findall(r'text-anchor="(\w+)"[^>]*>([123])</text>', drawn)}
    assert places == {"1": "start", "2": "end", "3": "start"}


def test_a_scatter_of_next_to_nothing() -> None:
    assert "nothing to draw" in svg.scatter({}, "x", "y")
    assert "nan" not in svg.scatter({3: ("a", 0.0, 0.0, 0.0)}, "x", "y")


def test_the_axis_of_equal_values_ends_at_them() -> None:
    assert 'text-anchor="end">150<' not in svg.line_chart({"": ([1, 2], [100, 100])}, "x", "y")
    assert 'text-anchor="end">100<' in svg.line_chart({"": ([1, 2], [100, 100])}, "x", "y")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (599, "599 s"), (600, "10 min"), (35999, "600 min"), (36000, "10.0 h")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_strips_are_on_one_scale() -> None:
    lines, low, high = strips([(0.5, 0.0, 0.6), (0.8, 0.1, 0.8), (1.0, 0.0, 1.0)], 6)
    assert lines == ["ox", "  -o-", "     o"]
    assert (low, high) == (0.5, 1.0)
    assert strips([(0.5, 0.0, 0.5)], 6)[0] == ["o"]
