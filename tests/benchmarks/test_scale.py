"""The comparison of the model of scale with groups of processes, at a toy size."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.rehearsal import Rehearsal
from rheobase import recipes
from rheobase.train import steptimes
from rheobase.train.scale import Link

pytestmark = pytest.mark.slow

TOY = recipes.get("demo").changed(["image_size=8", "timesteps=1", "epochs=2", "batch_size=6", "padding=0"])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_the_processes_of_a_group_rehearse_and_train() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    one, other = scale.team(TOY, 1, 2, 1)
    assert one.seconds > 0
    assert one.rehearsal is not None
    assert one.rehearsal == other.rehearsal, "all know the same"
    assert 0 < one.rehearsal.beside <= one.rehearsal.slowest
    assert min(one.rehearsal.link.latency, one.rehearsal.idle_latency) > 0
    (alone,) = scale.team(TOY, 1, 1, 1)
    assert alone.rehearsal is None


def test_a_prediction_is_made_of_what_was_measured() -> None:
    rehearsal = Rehearsal(beside=0.22, slowest=0.25, link=Link(latency=1e-3, bandwidth=1e9), idle_latency=1e-4)
    row = scale.compare(TOY, 2, 0.5, alone=0.2, rehearsal=rehearsal, measured=0.4)
    assert (row["processes"], row["batch"], row["collectives"], row["alone_seconds"]) == (2, 3, 15, 0.2)
    assert row["statistics_seconds"] == pytest.approx(7 * 1e-3 + 7 * 2e-3, rel=0.01)  # they are small
    assert row["gradients_seconds"] == pytest.approx(2e-3 + row["bytes"] / 1e9, rel=0.01)  # and most of all bytes
    parts = 0.25 + row["statistics_seconds"] + row["gradients_seconds"]
    assert row["predicted_seconds"] == pytest.approx(parts)
    assert row["predicted_to_measured"] == pytest.approx(parts / 0.4)
    assert row["measured_efficiency"] == pytest.approx(0.5 / (2 * 0.4))
    one = scale.compare(TOY, 1, 0.5, alone=0.5, rehearsal=None, measured=0.5)
    assert (one["predicted_to_measured"], one["latency_seconds"]) == (1.0, None)


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
        scale.team(TOY, 1, 999, 1)
