"""Tables of documents that are written from results."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools import documents


def cells(table: str) -> list[list[str]]:
    """Of its rows, without the heading."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_measured_and_computed_times_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(seconds: float, **others: Any) -> dict[str, Any]:
        return {"seconds": seconds, "ratio": seconds / 0.02, **others}

    computed = {"collectives": 37, "bytes": 5_000_000, "seconds_of_collectives_on_node": 0.003, "ratio_on_node": 1.2}
    results = {"alone": found(0.02), "joined": found(0.021, **computed, host_synchronisations=1)}
    results |= {"local": found(0.0202, **computed, host_synchronisations=2)}
    run = {"setting": {"network": "resnet19", "batch": 64}, "results": results}
    monkeypatch.setattr(documents, "read", lambda name: {"node": {"gpus": 4}, "runs": [run]})
    found, _, waits = documents.group().partition("\n\n")
    assert "on 4 GPUs: collectives, ms" in found
    joined, local = cells(found)
    assert joined == ["ResNet-19", "64", "joined", "20.00", "21.00", "1.050", "37, 5.0 MB", "3.00", "1.200"]
    assert waits == "Host synchronisations in all these steps: 3."
    assert local[2:6] == ["local", "20.00", "20.20", "1.010"]


def test_the_model_of_scale_against_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"predicted_seconds": 0.2, "measured_seconds": 0.25, "predicted_to_measured": 0.8}
    content = {
        "setting": {"network": "resnet8", "threads": 4},
        "runs": [{"processes": 2, "batch": 64, **times}],
        "groups_of_one": [{"network": "resnet19", "batch": 256, **times}],
    }
    monkeypatch.setattr(documents, "read", lambda name: content)
    assert cells(documents.scale()) == [
        ["ResNet-8", "2 x 4 cores, gloo", "64", "200", "250", "0.80"],
        ["ResNet-19", "group of one, H200", "256", "200", "250", "0.80"],
    ]


def test_the_stop_for_a_checkpoint_is_the_median_and_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"batch": 8, "step_seconds": 0.03, "checkpoint_bytes": 176_400_000}
    found |= {"stall_seconds": [0.009, 0.001, 0.002], "drag_seconds": [-0.001, 0.003, 0.02]}
    found |= {"written_seconds": [0.5, 0.25, 3.0]}
    monkeypatch.setattr(documents, "read", lambda name: {"results": {"cuda": {"resnet50": found}, "cpu": {}}})
    assert cells(documents.checkpoints()) == [["ResNet-50", "8", "176", "30.0", "2.0", "9.0", "3.0", "20.0", "0.50"]]


def point(t: int, accuracy: float, **more: Any) -> dict[str, Any]:
    return {"timesteps": t, "accuracy": accuracy, "joule": 1e-3 * t, **more}


def test_conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    assert documents.conversions() == "This has not been measured on CIFAR-10 yet."
    converted = [point(2, 11.0, relu=96, images=50), point(512, 95.61, relu=96, images=50)]
    longer = point(2048, 95.9, relu=97, images=5)
    rows = [
        {"label": "direct, T = 2", "timesteps": 2, "near": None, "points": [point(1, 90.0), point(2, 94.5)]},
        {"label": "rmp", "timesteps": None, "near": 512, "points": converted},
        {"label": "spike-norm", "timesteps": None, "near": None, "points": [converted[0], longer]},
    ]
    sentences = ["rmp: 11 % at T = 2.", "Direct training at T = 2, 94.50 %, is ahead."]
    (tmp_path / "results" / "convert").mkdir(parents=True)
    content = {"data": {"rows": rows}, "comparison": sentences}
    (tmp_path / "results" / "convert" / "table1.json").write_text(json.dumps(content))
    heading, _, direct, rmp, spike_norm, _, legend, _, verdict = documents.conversions().splitlines()
    assert heading == "| network | ReLU, % | T within 0.5 points | mJ | T = 1 | T = 2 | T = 512 | T = 2048 |"
    assert direct == "| direct, T = 2 |  |  | 2 | 90.00 | 94.50 |  |  |"
    assert rmp == "| rmp | 96.00 | 512 | 512 |  | 11.00 | 95.61 |  |"
    assert spike_norm == "| spike-norm | 96.00 | none |  |  | 11.00 |  | 95.90* |"
    assert legend == r"\* on every tenth image"
    assert verdict == sentences[1]


def test_normalisations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    folder = tmp_path / "results" / "normalisation" / "none" / "seed-0"
    folder.mkdir(parents=True)
    lines = [{"test_accuracy": 0.1, "elapsed": 1.0}, {"test_accuracy": 0.1235, "elapsed": 61.7}]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    _, _, *rows = documents.normalisations().splitlines()
    assert rows == ["| tdBN | not measured yet |  |", "| none | 12.35 | 62 |", "| NeuNorm | not measured yet |  |"]
