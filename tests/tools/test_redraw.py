import json
import shutil
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", redraw.CHARTS)
def test_charts_show_what_the_file_says(name: str) -> None:
    data = json.loads((KEPT / f"{name}.json").read_text())["data"]
    charts = redraw.CHARTS[name](data)
    shown = [value for chart in charts for _, ys in chart.series.values() for value in ys]
    expected = {
        "ablation": lambda: [row["accuracy"] for row in data["rows"]],
        "fig2": lambda: [v for what in ("weights", "spikes") for row in data["rows"] if row["tdbn"] for v in row[what]],
        "fig6": lambda: [sum(layer["rates"]) for layers in data.values() for layer in layers],
        "table6": lambda: [*data["counts"]["as the paper counts"], data["dense"], data["dense"], 1.8e9, 3.4e7],
    }[name]()
    assert shown == expected
