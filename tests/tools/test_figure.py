"""The figures show what is in the files, and nothing that is not."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rheobase.recipes import get
from tests.tools.kept import write_kept
from tools import figure
from tools.results import kept

FOUND = {"us_per_image_timestep": 3.25}
HOW = {"record": {"device": "a GPU"}}


def step(network: str, **results: dict[str, float]) -> dict[str, object]:
    named = {name.replace("_", "-"): found for name, found in results.items()}
    return HOW | {"runs": [{"setting": {"network": network, "batch": 7, "timesteps": 4}, "results": named}]}


def write(folder: Path, name: str, content: dict[str, object]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_who_did_not_take_part_has_no_bar(tmp_path: Path) -> None:
    write(tmp_path, "step-nvidia-h200", step("resnet19", floor=FOUND, rheobase_speed=FOUND, loop=FOUND))
    write(tmp_path, "step-nvidia-h200-resnet50", step("resnet50", rheobase_speed=FOUND))
    first, second = figure.steps(tmp_path)
    assert first.bars == [("convolutions and linear layers alone", 3.25), ("Rheobase", 3.25)]
    assert second.title == "Training step of ResNet-50, T = 4, N = 7, bf16, one a GPU: µs per image and timestep"
    assert second.bars == [("Rheobase", 3.25)]


def test_inference_is_that_of_graphs(tmp_path: Path) -> None:
    found = {"folded": {"milliseconds": 9.0}, "folded, CUDA graph": {"milliseconds": 1.0}}
    settings = {"network": "resnet19", "timesteps": 4}
    write(tmp_path, "inference-nvidia-h200", HOW | {"settings": settings, "results": {"1": found, "32": {}}})
    (group,) = figure.inference(tmp_path)
    assert group.bars == [("Rheobase, folded", 1.0)]
    assert "N = 1, one a GPU" in group.title
    assert list(figure.drawings(tmp_path)) == ["speed-nvidia-h200-inference.svg"]


def test_bars_are_as_long_as_their_values() -> None:
    drawing = figure.bars([figure.Group("a < b", "ms", [("Rheobase", 2.0), ("other", 8.0)])])
    short, long = (float(width) for width in re.findall(r'class="bar[^>]*width="([0-9.]+)"', drawing))
    assert long == 4 * short
    assert "8 ms" in drawing
    assert ElementTree.fromstring(drawing)[0].text == "a < b"


def test_curves_are_those_of_runs_with_a_beginning(tmp_path: Path) -> None:
    write_kept(tmp_path / "a", get("demo"), 0.5, 0.9, 0.95)
    write_kept(tmp_path / "b", get("demo"), 0.9, 0.96, forked={"recipe": "demo", "step": 100})
    drawing = figure.accuracies(kept(tmp_path))
    (curve,) = re.findall(r'<polyline class="curve c0" points="(.*?)"', drawing)
    assert f"demo, T = {get('demo').timesteps}: 95.00 %" in drawing
    first, last = ([float(place) for place in point.split(",")] for point in curve.split())  # 50 % is out of sight
    assert last[0] == figure.WIDTH - figure.EDGE, "the end of the longest run"
    assert first[0] == pytest.approx(figure.EDGE + (last[0] - figure.EDGE) * 2 / 3, abs=0.1)
    assert first[1] - last[1] == pytest.approx(5 / (figure.HIGHEST - figure.LOWEST) * figure.PLOT, abs=0.1)


def test_without_results_nothing_is_drawn(tmp_path: Path) -> None:
    assert figure.drawings(tmp_path) == {}
    figure.main(tmp_path)
    assert list(tmp_path.iterdir()) == []
