"""The comparison of the model of scale with groups of processes, at a toy size."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import scale
from rheobase import recipes
from rheobase.train import steptimes

TOY = recipes.get("demo").changed(["image_size=8", "timesteps=1", "epochs=2", "batch_size=6", "padding=0"])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_group_is_compared_with_its_prediction() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    row = scale.compare(TOY, 2, threads=1, steps=2, whole=0.5)
    assert (row["processes"], row["batch"], row["collectives"]) == (2, 3, 15)
    parts = row["beside_others_seconds"] + row["statistics_seconds"] + row["gradients_seconds"]
    assert row["predicted_seconds"] == pytest.approx(parts)
    assert row["predicted_to_measured"] == pytest.approx(row["predicted_seconds"] / row["measured_seconds"])
    assert row["measured_efficiency"] == pytest.approx(0.5 / (2 * row["measured_seconds"]))
    assert row["statistics_seconds"] > 14 * row["latency_seconds"] > 0


def test_groups_of_one_are_compared_with_the_step_of_one_process(tmp_path: Path) -> None:
    setting = {"recipe": "cifar10_resnet19_t4", "network": "resnet19", "timesteps": 4, "batch": 32, "precision": "bf16"}
    results = {name: {"seconds": seconds} for name, seconds in [("alone", 1.0), ("joined", 0.005), ("local", 2.0)]}
    for name, device in [("group-h200.json", steptimes.table().device), ("group-other.json", "another GPU")]:
        run = {"setting": setting, "results": results}
        (tmp_path / name).write_text(json.dumps({"record": {"device": device}, "runs": [run]}))
    (known,) = (s for s in steptimes.table().steps if (s.timesteps, s.batch, s.memory) == (4, 32, "speed"))
    (row,) = scale.groups_of_one(tmp_path)
    assert (row["source"], row["kind"], row["measured_seconds"]) == ("group-h200.json", "measured", 0.005)
    assert row["predicted_to_measured"] == pytest.approx(known.seconds / 0.005)


def test_more_threads_than_cores() -> None:
    with pytest.raises(ValueError, match="999 processes of 1 threads need 999 cores; there are"):
        scale.team(TOY, 1, 999, 1, grouped=False)
