"""The figure of speeds shows what is in the files, and nothing that is not."""

import json
from math import isnan
from pathlib import Path

import pytest

from tools import figure
from tools.readme import ROOT


def step(network: str, **times: float) -> dict[str, object]:
    results = {name.replace("_", "-"): {"us_per_image_timestep": time} for name, time in times.items()}
    return {"setting": {"network": network, "batch": 7, "timesteps": 4}, "results": results}


def test_who_did_not_take_part_has_no_bar() -> None:
    chart = figure.step_chart([step("resnet19", floor=2.0, rheobase_speed=3.0), step("resnet50", rheobase_speed=5.0)])
    assert list(chart.series) == ["convolutions alone", "Rheobase"]
    words, times = chart.series["Rheobase"]
    assert (list(words), list(times)) == (["ResNet-19, N = 7", "ResNet-50, N = 7"], [3.0, 5.0])
    assert isnan(chart.series["convolutions alone"][1][1])


def test_inference_is_that_of_graphs() -> None:
    found = {"folded": {"milliseconds": 9.0}, "folded, CUDA graph": {"milliseconds": 1.0}}
    content = {"settings": {"network": "resnet19", "timesteps": 4}, "results": {"1": found, "32": {}}}
    chart = figure.inference_chart(content)
    assert list(chart.series) == ["folded"]
    assert chart.series["folded"][1][0] == 1.0
    assert isnan(chart.series["folded"][1][1])


def test_it_is_drawn_from_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra rheobase[plots] is not installed")
    with pytest.raises(ValueError, match="no results of a training step on 'nvidia-h200' in"):
        figure.make(tmp_path, "nvidia-h200")
    kept = json.loads((ROOT / "results" / "step-nvidia-h200.json").read_text())
    (tmp_path / "step-nvidia-h200.json").write_text(json.dumps(kept))
    assert [path.name for path in figure.make(tmp_path, "nvidia-h200")] == [
        "speed-nvidia-h200.svg", "speed-nvidia-h200.png"
    ]  # fmt: skip
    assert all(path.stat().st_size > 5000 for path in tmp_path.glob("speed-*"))
