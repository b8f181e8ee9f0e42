import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.runs import made
from tools import redraw
from tools.results import ROOT

KEPT = ROOT / "results" / "paper"


def test_pictures_are_drawn_from_the_kept_files_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    shutil.copyfile(KEPT / "table6.json", tmp_path / "table6.json")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")  # not a result
    redraw.main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "table6.json", "table6.png", "table6.svg"}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.json"]


def test_learning_curves_are_drawn_where_there_were_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[Path, list[int]] = {}
    monkeypatch.setattr(
        redraw.plots, "learning_curves", lambda rows, path: drawn.update({path: [row["epoch"] for row in rows]})
    )
    for name, curves in (("with", True), ("without", False)):
        run = made(tmp_path / name, accuracies=[0.5, 0.75, 0.875])
        if curves:
            (run.folder / "curves.png").write_bytes(b"old")
    redraw.main(tmp_path)
    assert drawn == {tmp_path / "with" / "curves.png": [1, 2, 3]}


@pytest.mark.parametrize("name", redraw.CHARTS)
def test_charts_show_what_the_file_says(name: str) -> None:
    folder = ROOT / "results" / ("convert" if name == "table1" else "paper")
    data = json.loads((folder / f"{name}.json").read_text())["data"]
    charts = redraw.CHARTS[name](data)
    shown = [value for chart in charts for _, ys in chart.series.values() for value in ys]
    expected = {
        "ablation": lambda: [row["accuracy"] for row in data["rows"]],
        "fig2": lambda: [v for what in ("weights", "spikes") for row in data["rows"] if row["tdbn"] for v in row[what]],
        "fig3": lambda: [0.5 * d for row in data["rows"] for d in row["histogram"]["density"]],  # per threshold
        "fig4": lambda: [share for row in data["rows"] for share in row["shares"]],
        "fig6": lambda: [sum(layer["rates"]) for layers in data.values() for layer in layers],
        "table1": lambda: 2 * [point["accuracy"] for row in data["rows"] for point in row["points"]],
        "table6": lambda: [*data["counts"]["as the paper counts"], data["dense"], data["dense"], 1.8e9, 3.4e7],
        "theorem1": lambda: [
            *(row["phi"] for row in data["ratios"]),
            *charts[0].series["calculated"][1],
            *charts[0].series["the paper"][1],
            *(phi for entry in data["networks"] for phi in entry["phis"]),
        ],
        "theorem2": lambda: [v for decay in (0.25, 0.5) for v in variances(data["rows"], decay)],
    }[name]()
    assert shown == expected


def variances(rows: list[dict[str, Any]], decay: float) -> list[float]:
    """What Theorem 2 shows at a decay: three variances in units of sigma^2, and two ways to calculate them."""
    own = [row for row in rows if row["decay"] == decay]
    measured = [v / row["sigma"] ** 2 for row in own for v in row["variance"]]
    return [*measured, *(v / 0.5**2 for key in ("without_reset", "two_terms") for v in own[1][key])]


def test_the_threshold_is_one_and_the_current_has_its_width() -> None:
    (chart,) = redraw.CHARTS["fig3"](json.loads((KEPT / "fig3.json").read_text())["data"])
    assert (chart.x, chart.mark) == ("u / v_th", ("threshold", 1.0))
    for label, sigma in (("sigma = 0.5 v_th", 0.5), ("sigma = 2 v_th", 2.0)):
        xs, density = chart.series[label]
        step = float(xs[1]) - float(xs[0])
        assert sum(density) * step == pytest.approx(1, abs=0.02)
        spread = sum(float(x) ** 2 * d for x, d in zip(xs, density, strict=True)) * step
        assert spread**0.5 == pytest.approx(sigma, rel=0.05)


def test_a_decay_has_a_colour_and_a_width_has_dashes() -> None:
    data = json.loads((KEPT / "fig2.json").read_text())["data"]
    chart, _ = redraw.CHARTS["fig2"](data)
    looks = {(row["decay"], row["width"]): chart.looks[row["label"]] for row in data["rows"] if row["tdbn"]}
    assert len({*looks.values()}) == 6
    for (decay, width), (colour, dashes) in looks.items():
        assert (colour, dashes) == ([0.0, 0.25, 0.5].index(decay), [1.0, 0.9].index(width))


def test_what_was_measured_at_four_ratios_is_no_line() -> None:
    chart, _ = redraw.CHARTS["theorem1"](json.loads((KEPT / "theorem1.json").read_text())["data"])
    assert chart.looks["measured"][1] is None
    assert len(chart.series["measured"][0]) == 4
    assert len(chart.series["calculated"][0]) >= 30, "so many that the line has no markers"
    assert "gradient norm" in chart.y


def test_accuracies_begin_where_all_curves_arrive() -> None:
    data = json.loads((ROOT / "results" / "convert" / "table1.json").read_text())["data"]
    timesteps, energy = redraw.CHARTS["table1"](data)
    assert timesteps.low == energy.low == 60
    assert energy.x.endswith("mJ")
    first = next(iter(data["rows"]))
    assert energy.series[first["label"]][0][0] == 1e3 * first["points"][0]["joule"]
    poor = data | {"rows": [*data["rows"], first | {"label": "poor", "points": first["points"][:1]}]}
    poor["rows"][-1]["points"] = [first["points"][0] | {"accuracy": 30.0}]
    assert redraw.CHARTS["table1"](poor)[0].low is None
