"""Table 1 with converted networks: what is measured, kept, compared and said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rheobase import recipes, train
from rheobase.data import load
from rheobase.data.holdout import hold_out
from rheobase.paper import conversion
from rheobase.paper.conversion import (
    PARTS,
    Curve,
    converted_curve,
    converted_part,
    result,
    table1,
    told_apart,
    trained_curve,
)
from rheobase.train.runs import Run
from tests.runs import RATES, made

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = recipes.get("demo").changed(["neuron=relu", "timesteps=1", "epochs=3", "batch_size=128"])
    return train.fit(recipe, out=tmp_path_factory.mktemp("runs") / "relu", device="cpu")


def test_direct_and_converted_networks_side_by_side(relu: Run, tmp_path: Path) -> None:
    direct = made(tmp_path / "direct", "timesteps=2", accuracies=[0.2, 0.4])
    found = list(table1([direct.folder, relu.folder], folder=tmp_path, ways=["data-norm", "calibrated"], longest=2))
    assert [one.to_come for one in found] == [1, 0]
    rows = found[-1].data["rows"]
    assert [row["label"] for row in rows] == ["direct, resnet8, T = 2", "data-norm, resnet8", "calibrated, resnet8"]
    assert rows[0]["points"][0]["accuracy"] == 40
    assert rows[0]["points"][0].keys() < rows[1]["points"][0].keys()  # the same costs of both
    assert rows[0]["points"][0]["additions"] > rows[0]["points"][0]["multiplications"] > 0
    assert [p["timesteps"] for p in rows[1]["points"]] == [1, 2, 4, 8]  # the last ones on a tenth of the images
    assert [p["images"] for p in rows[1]["points"]] == [359, 359, 36, 36]
    assert [p["timesteps"] for p in rows[2]["points"]] == [1, 2]
    last = relu.rows()[-1]["test_accuracy"]
    assert rows[2]["points"][0]["relu"] == 100 * last
    assert rows[2]["points"][1]["accuracy"] > 60
    text = "\n".join(found[-1].comparison)
    assert "40.00 % after 2 of 3 epochs" in text
    assert "Direct training at T = 2, 40.00 %, is reached within T = 8 by calibrated, resnet8 (" in text
    assert "(36 images)" in text
    assert "calibrated, resnet8 (converted anew for each T, up to 2): " in text
    assert "STBP, 5 conv, 2 fc, T = 12: 90.53 % (Wu et al. 2019)." in text
    assert text.count("Others on cifar10") == 1
    timesteps, energy = found[-1].charts
    assert timesteps.log_x
    assert [*timesteps.series] == [*energy.series] == [row["label"] for row in rows]


def test_what_was_measured_is_kept_and_not_measured_again(
    relu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = converted_part(relu, "calibrated", tmp_path / PARTS, longest=2)
    file = tmp_path / PARTS / "relu-calibrated.json"
    content = json.loads(file.read_text())
    assert content["points"] == part["points"]
    assert content["record"]["data"] == relu.data.fingerprint

    def measures(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(conversion, "convert_run", measures)
    for longest in (1, 2):  # fewer steps are there as well
        assert converted_part(relu, "calibrated", tmp_path / PARTS, longest=longest)["points"] == part["points"]
    with pytest.raises(AssertionError, match="measured again"):
        converted_part(relu, "calibrated", tmp_path / PARTS, longest=4)
    file.write_text(json.dumps(content | {"sha256": "another"}))
    with pytest.raises(AssertionError, match="measured again"):
        converted_part(relu, "calibrated", tmp_path / PARTS, longest=2)


def test_what_is_converted_anew_for_each_number_of_steps_stops_sooner(
    relu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "LONGEST", 4)
    monkeypatch.setattr(conversion, "LONGEST_ANEW", 2)
    for name, steps in (("calibrated", [1, 2]), ("rmp", [1, 2, 4]), ("data-norm-max", [1, 2, 4, 8, 16])):
        part = converted_part(relu, name, tmp_path / PARTS)
        assert [p["timesteps"] for p in part["points"]] == steps


def test_a_run_that_was_kept_without_weights_needs_none(relu: Run, tmp_path: Path) -> None:
    part = converted_part(relu, "rmp", tmp_path / PARTS, longest=2)
    shutil.copytree(relu.folder, tmp_path / "relu", ignore=shutil.ignore_patterns("checkpoints"))
    kept = Run(tmp_path / "relu")
    assert converted_part(kept, "rmp", tmp_path / PARTS, longest=2)["points"] == part["points"]
    with pytest.raises(ValueError, match="has no checkpoint"):
        converted_part(kept, "rmp", tmp_path / PARTS, longest=4)
    *rows, last = kept.rows()
    kept.write_rows([*rows, last | {"test_accuracy": last["test_accuracy"] / 2}])  # trained again since
    other = r"relu-rmp\.json was measured on other weights than those of .*relu, which"
    with pytest.raises(ValueError, match=other):
        converted_part(kept, "rmp", tmp_path / PARTS, longest=2)
    kept.write_rows([*rows, last | {"elapsed": last["elapsed"] + 1}])  # another run, with the same accuracy
    with pytest.raises(ValueError, match=other):
        converted_part(kept, "rmp", tmp_path / PARTS, longest=2)
    file = tmp_path / PARTS / "relu-rmp.json"
    content = json.loads(file.read_text())
    del content["tested"]  # as earlier versions wrote it
    file.write_text(json.dumps(content))
    assert converted_part(kept, "rmp", tmp_path / PARTS, longest=2)["points"] == part["points"]


def test_runs_in_folders_of_one_name_are_kept_and_told_apart(relu: Run, tmp_path: Path) -> None:
    folders = [tmp_path / name / "relu" for name in ("a", "b")]
    for folder in folders:
        shutil.copytree(relu.folder, folder)
    *_, found = table1(folders, folder=tmp_path, ways=["rmp"], longest=1)
    assert [row["label"] for row in found.data["rows"]] == ["rmp, resnet8 (a/relu)", "rmp, resnet8 (b/relu)"]
    files = sorted((tmp_path / PARTS).iterdir())
    assert [file.name for file in files] == ["a-relu-rmp.json", "b-relu-rmp.json"]
    assert [json.loads(file.read_text())["run"] for file in files] == ["a/relu", "b/relu"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"points": [3]}', '{"points": [{"relu": 0.5}]}'])
def test_a_damaged_measurement_is_named(relu: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / f"{relu.folder.name}-rmp.json").write_text(content)
    with pytest.raises(ValueError, match=r"-rmp\.json is damaged .*; remove it to measure again"):
        converted_part(relu, "rmp", tmp_path, longest=2)


def test_a_measurement_that_was_stopped_goes_on(relu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that are calibrated for one number of steps are kept one by one."""
    made_for, original = [], conversion.convert_run

    def stops(run: Run, method: str, timesteps: int, **options: Any) -> Any:
        made_for.append(timesteps)
        if made_for == [1, 2]:
            raise KeyboardInterrupt
        return original(run, method, timesteps, **options)

    monkeypatch.setattr(conversion, "convert_run", stops)
    with pytest.raises(KeyboardInterrupt):
        converted_part(relu, "calibrated", tmp_path / PARTS, longest=4)
    (file,) = (tmp_path / PARTS).iterdir()
    assert json.loads(file.read_text())["to_come"] == 2
    found = converted_part(relu, "calibrated", tmp_path / PARTS, longest=4)
    assert made_for == [1, 2, 2, 4]
    assert [p["timesteps"] for p in found["points"]] == [1, 2, 4]
    assert "to_come" not in json.loads(file.read_text())


def test_a_damaged_file_of_what_was_measured(relu: Run, tmp_path: Path) -> None:
    (tmp_path / "relu-calibrated.json").write_text("{")
    with pytest.raises(ValueError, match=r"relu-calibrated\.json is damaged .*; remove it to measure again"):
        converted_part(relu, "calibrated", tmp_path, longest=2)


def test_held_out_images_are_told_and_not_compared_with_others(tmp_path: Path) -> None:
    held_out = hold_out(load("digits"), 100).info
    recipe = recipes.get("demo").changed(["timesteps=2", "holdout=100"])
    run = Run.create(tmp_path / "direct", recipe, held_out, CPU)
    run.append({"epoch": 1, "step": 1, "test_accuracy": 0.9, "firing_rates": RATES})
    curve = trained_curve(run)
    assert curve is not None
    assert curve.label == "direct, resnet8, T = 2, held-out training images"
    part = {"points": points((1, 0.99), relu=0.99)}
    on_test_images = converted_curve("rmp", made(tmp_path / "relu", accuracies=[]), part)
    assert on_test_images.data == "digits"
    assert not any("Direct" in one for one in result(None, [curve, on_test_images], "made up", CPU, 0).comparison)
    as_well = converted_curve("rmp", run, part)
    assert any("Direct" in one for one in result(None, [curve, as_well], "made up", CPU, 0).comparison)


def test_two_runs_with_the_same_settings_are_two_curves(tmp_path: Path) -> None:
    runs = [made(tmp_path / name, f"timesteps={t}", accuracies=[0.5]) for name, t in (("a", 2), ("b", 2), ("c", 4))]
    labels = ["direct, resnet8, T = 2 (a)", "direct, resnet8, T = 2 (b)", "direct, resnet8, T = 4"]
    (found,) = table1([run.folder for run in runs], folder=tmp_path)
    assert [row["label"] for row in found.data["rows"]] == labels


def test_names_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    runs = [made(tmp_path / name, accuracies=[]) for name in ("x/0/run", "y/0/run", "y/1/other")]
    assert [*told_apart(runs).values()] == ["x/0/run", "y/0/run", "y/1/other"]
    assert [*told_apart(runs[1:] * 2).values()] == ["run", "other"]
    assert told_apart([]) == {}


def test_other_numbers_of_steps_where_a_run_kept_them(tmp_path: Path) -> None:
    run = made(tmp_path / "direct", "timesteps=2", accuracies=[0.9])
    rates = run.rows()[-1]["firing_rates"]
    kept = {
        "timesteps": {"1": {"accuracy": 0.8, "firing_rates": rates}, "4": {"accuracy": 0.95, "firing_rates": rates}}
    }
    (run.folder / "timesteps.json").write_text(json.dumps(kept))
    curve = trained_curve(run)
    assert curve is not None
    assert [(p["timesteps"], p["accuracy"]) for p in curve.points] == [(1, 80), (2, 90), (4, 95)]
    assert trained_curve(made(tmp_path / "none", accuracies=[])) is None


def points(*pairs: tuple[int, float], relu: float | None = None) -> list[dict[str, Any]]:
    own = {} if relu is None else {"relu": relu, "images": 100}
    return [{"timesteps": t, "accuracy": a, "firing_rate": 0.1, "joule": 1e-6 * t, **own} for t, a in pairs]


def test_near_and_the_claim() -> None:
    direct = Curve("direct, net, T = 2", points((1, 80), (2, 94)), 2)
    slow = Curve("slow", points((1, 10), (8, 93.9), (16, 95.6), (32, 96), relu=96))
    fast = Curve("fast", points((1, 10), (8, 94.5), (16, 95.4), relu=96))
    assert slow.near is not None
    assert slow.near["timesteps"] == 16
    assert fast.near is None
    ahead = result(None, [direct, slow], "made up", CPU, 0).comparison
    assert "Direct training at T = 2, 94.00 %, is ahead of every converted network up to T = 8." in ahead
    assert any("within 0.5 points of the ReLU network (96.00 %) at T = 16, for 0.016 mJ" in one for one in ahead)
    elsewhere = Curve("elsewhere", points((1, 99), relu=99), data="other")
    assert not any("Direct" in one for one in result(None, [direct, elsewhere], "made up", CPU, 0).comparison)
    beaten = result(None, [direct, slow, fast], "made up", CPU, 0).comparison
    assert "Direct training at T = 2, 94.00 %, is reached within T = 8 by fast (94.50 % at T = 8)." in beaten
    assert any("fast: " in one and "never within 0.5 points" in one for one in beaten)


def test_mistakes(relu: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown method 'best'; choose from data-norm, data-norm-max, spike-norm"):
        list(table1([relu.folder], folder=tmp_path, ways=["best"]))
    with pytest.raises(ValueError, match="none of these runs can be converted by qcfs; leave out --methods"):
        list(table1([relu.folder], folder=tmp_path, ways=["qcfs"]))
    untested = made(tmp_path / "relu", "neuron=relu", "timesteps=1", accuracies=[])
    with pytest.raises(ValueError, match="has no test accuracy yet; let its first evaluation finish"):
        list(table1([untested.folder], folder=tmp_path))
