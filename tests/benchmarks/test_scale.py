"""The comparison of the model of scale with groups of processes, at a toy size."""

import os

import pytest

from benchmarks import scale
from rheobase import recipes

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


def test_more_threads_than_cores() -> None:
    with pytest.raises(ValueError, match="999 processes of 1 threads need 999 cores; there are"):
        scale.team(TOY, 1, 999, 1, grouped=False)
