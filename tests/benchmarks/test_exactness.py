"""Whether a training gives the same bits again: the answer is right, and so is what is said when there is none."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exactness
from rheobase import recipes, train

pytestmark = pytest.mark.slow

SMALL = ["demo", "--device", "cpu", "--set", "batch_size=64", "--set", "timesteps=1"]


def fitted(out: Path, seed: int) -> Path:
    recipe = recipes.get("demo").changed(["epochs=1", "batch_size=1438", "timesteps=1", f"seed={seed}"])
    return train.fit(recipe, out=out, device="cpu").folder


def test_runs_are_compared_bit_for_bit(tmp_path: Path) -> None:
    first, again, other = (fitted(tmp_path / name, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    assert exactness.same(first, again)
    assert not exactness.same(first, other)


def test_a_training_on_a_cpu_is_the_same_again_also_when_it_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    plain = exactness.train

    def watched(arguments: list[str], out: Path, **how: Any) -> None:
        plain(arguments, out, **how)
        killed.append(len(exactness.epochs(out)))

    monkeypatch.setattr(exactness, "train", watched)
    found = exactness.measure(SMALL, 4, deterministic=True)
    assert found["same_when_repeated"]
    assert found["same_when_killed_and_resumed"]
    assert len(found["epoch_seconds"]) == 2
    assert killed[:2] == [4, 4]
    assert 2 <= killed[2] < killed[3] == 4


def test_half_a_line_of_metrics_is_no_epoch(tmp_path: Path) -> None:
    assert exactness.epochs(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2, "lo')
    assert exactness.epochs(tmp_path) == [{"epoch": 1}]


def test_a_training_that_fails_or_is_too_short_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^the run failed: error: .*no_such_recipe"):
        exactness.train(["no_such_recipe"], tmp_path / "a")
    with pytest.raises(ValueError, match="ended before it could be killed after epoch 9; use more --epochs"):
        exactness.train([*SMALL, "--set", "epochs=1"], tmp_path / "b", kill_after=9)


def test_the_result_says_what_was_found_and_what_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(arguments: list[str], number: int, *, deterministic: bool) -> dict[str, Any]:
        assert (arguments, number) == (["demo", "--set", "width=0.5", "--device", "cpu"], 6)
        return {
            "same_when_repeated": deterministic,
            "same_when_killed_and_resumed": deterministic,
            "epoch_seconds": [3.0, 2.5] if deterministic else [2.0, 4.0],
        }

    out = tmp_path / "exactness.json"
    monkeypatch.setattr(exactness, "measure", measure)
    words = ["demo", "--set", "width=0.5", "--epochs", "6", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["exactness", *words])
    exactness.main()
    found = json.loads(out.read_text())
    assert found["setting"] == {"recipe": "demo", "epochs": 6}
    assert found["slower"] == 1.25
    assert [way["same_when_repeated"] for way in found["ways"].values()] == [False, True]
    assert found["record"]["device"]
